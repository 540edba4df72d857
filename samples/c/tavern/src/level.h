/* A level's life: ask for room, wait until the model has really left it, fill it, play, free it. Knows neither SDL
 * nor xlm: the caller does what level_next() says and reports back. */
#ifndef TAVERN_LEVEL_H
#define TAVERN_LEVEL_H

#include <stdint.h>

#define LEVEL_COUNT 3
#define LEVEL_MAX_PIECES 12
#define LEVEL_PIECE_SIDE 1024 /* pixels; 4 bytes each */
#define LEVEL_PIECE_BYTES ((uint64_t)LEVEL_PIECE_SIDE * LEVEL_PIECE_SIDE * 4)

typedef struct level_plan {
    const char *name;
    int pieces; /* textures of LEVEL_PIECE_BYTES */
    unsigned char wall[3], floor[3];
} level_plan;
extern const level_plan level_plans[LEVEL_COUNT];

typedef enum level_phase {
    LEVEL_EMPTY,   /* all of the last level is freed; room is to be asked for */
    LEVEL_WAITING, /* asked; the answer to `ticket` is to come */
    LEVEL_LOADING, /* there is room: a piece a frame */
    LEVEL_PLAYING
} level_phase;

/* What the game is to do now. */
typedef enum level_step { LEVEL_DO_NOTHING, LEVEL_DO_ASK, LEVEL_DO_LOAD_PIECE } level_step;

typedef struct level {
    int index;
    level_phase phase;
    int loaded;      /* pieces */
    uint64_t ticket; /* of the reservation that is waited for */
    int loads;       /* levels loaded so far */
    int in_time;     /* of those, how many found their room free before the deadline */
} level;

/* Bytes of a level's textures. */
uint64_t level_bytes(int index);
/* To another level, whose pieces are not there yet: the caller has freed the old ones. */
void level_enter(level *at, int index);
level_step level_next(const level *at);
/* The room was asked for. `ticket` 0: nobody is there to ask (no broker), so there is nothing to wait for. */
void level_asked(level *at, uint64_t ticket);
/* A reservation was answered, with its bytes free (`met`: before the deadline), or refused. Both end the wait: a game
 * loads its level whatever the model does. Answers of other tickets change nothing. */
void level_answered(level *at, uint64_t ticket, int met);
/* A piece is there. */
void level_piece_loaded(level *at);

#endif
