#include "level.h"

const level_plan level_plans[LEVEL_COUNT] = {
    {"The Copper Kettle", 4, {72, 52, 40}, {96, 68, 44}},
    {"The cellar", 2, {44, 48, 60}, {58, 60, 70}},
    {"The dragon's hall", 12, {84, 30, 30}, {110, 60, 36}},
};

uint64_t level_bytes(int index) {
    return LEVEL_PIECE_BYTES * (uint64_t)level_plans[index].pieces;
}

void level_enter(level *at, int index) {
    at->index = index;
    at->phase = LEVEL_EMPTY;
    at->loaded = 0;
    at->ticket = 0;
}

level_step level_next(const level *at) {
    if (at->phase == LEVEL_EMPTY) return LEVEL_DO_ASK;
    return at->phase == LEVEL_LOADING ? LEVEL_DO_LOAD_PIECE : LEVEL_DO_NOTHING;
}

void level_asked(level *at, uint64_t ticket) {
    at->ticket = ticket;
    at->phase = ticket == 0 ? LEVEL_LOADING : LEVEL_WAITING;
}

void level_answered(level *at, uint64_t ticket, int met) {
    if (at->phase != LEVEL_WAITING || ticket != at->ticket) return;
    at->phase = LEVEL_LOADING;
    at->in_time += met != 0;
}

void level_piece_loaded(level *at) {
    if (at->phase != LEVEL_LOADING || ++at->loaded < level_plans[at->index].pieces) return;
    at->phase = LEVEL_PLAYING;
    at->loads++;
}
