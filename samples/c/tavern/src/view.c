#include "view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "font.h"
#include "layout.h"
#include "utf8.h"
#include "wrap.h"

typedef struct colour {
    unsigned char r, g, b;
} colour;
/* tests/samples/test_tavern.py looks for these in the picture. */
static const colour ink = {20, 16, 12}, paper = {245, 235, 205}, light = {235, 235, 240}, dim = {150, 150, 160},
                    dark = {24, 24, 30}, budget = {60, 110, 200}, used = {240, 150, 40}, resident = {90, 210, 120},
                    reserved = {150, 80, 180}, good = {80, 200, 100}, bad = {220, 70, 60}, skin = {224, 182, 150};

static void fill(SDL_Renderer *renderer, colour with, int x, int y, int w, int h) {
    const SDL_Rect rect = {x, y, w, h};
    SDL_SetRenderDrawColor(renderer, with.r, with.g, with.b, 255);
    SDL_RenderFillRect(renderer, &rect);
}

static void fill_area(SDL_Renderer *renderer, colour with, area of) {
    fill(renderer, with, of.x, of.y, of.w, of.h);
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

static void glyph(SDL_Renderer *renderer, uint32_t code, colour with, int x, int y) {
    unsigned char rows[FONT_ROWS];
    int row, column;
    font_glyph(code, rows);
    for (row = 0; row < FONT_ROWS; row++)
        for (column = 0; column < FONT_COLUMNS; column++)
            if (rows[row] >> (FONT_COLUMNS - 1 - column) & 1)
                fill(renderer, with, x + column * TEXT_SCALE, y + row * TEXT_SCALE, TEXT_SCALE, TEXT_SCALE);
}

static void text(SDL_Renderer *renderer, colour with, int x, int y, const char *words, size_t len) {
    size_t at = 0;
    while (at < len) {
        uint32_t code = 0;
        at += utf8_first(words + at, len - at, &code);
        glyph(renderer, code, with, x, y);
        x += FONT_ADVANCE * TEXT_SCALE;
    }
}

static void label(SDL_Renderer *renderer, colour with, int x, int y, const char *words) {
    text(renderer, with, x, y, words, strlen(words));
}

/* ---- the panel ------------------------------------------------------------------------------------------------- */

static uint64_t total_bytes(const talk *t) {
    const uint64_t known = t->device_total_bytes;
    return known ? known : t->lease.granted_bytes;
}

/* Budget, what of it is used, what of that is resident (no scratch), and from the right what is kept for the level. */
static void draw_bar(SDL_Renderer *renderer, const talk *t) {
    const area bar = layout_bar();
    const uint64_t total = total_bytes(t);
    const int kept = layout_share(t->lease.reserved_bytes, total, bar.w);
    fill_area(renderer, dark, bar);
    fill(renderer, reserved, bar.x + bar.w - kept, bar.y, kept, bar.h);
    fill(renderer, budget, bar.x, bar.y, layout_share(t->lease.granted_bytes, total, bar.w), bar.h);
    fill(renderer, used, bar.x, bar.y + 6, layout_share(t->lease.used_bytes, total, bar.w), bar.h - 12);
    fill(renderer, resident, bar.x, bar.y + bar.h - 4, layout_share(t->resident_bytes, total, bar.w), 4);
}

static void draw_figures(SDL_Renderer *renderer, const talk *t) {
    char line[120];
    const struct {
        colour with;
        const char *name;
        uint64_t bytes;
    } parts[] = {{budget, "budget", t->lease.granted_bytes},
                 {used, "used", t->lease.used_bytes},
                 {resident, "resident", t->resident_bytes},
                 {reserved, "level", t->lease.reserved_bytes}};
    int i, x = 16;
    for (i = 0; i < 4; i++) {
        snprintf(line, sizeof line, "%s %" PRIu64 " MiB", parts[i].name, parts[i].bytes >> 20);
        fill(renderer, parts[i].with, x, 54, 12, 12);
        label(renderer, light, x + 18, 50, line);
        x += 18 + (int)(strlen(line) + 2) * FONT_ADVANCE * TEXT_SCALE;
    }
}

static const char *state_words(const talk *t) {
    if (t->state == XLM_CLIENT_FAILED) return "this broker speaks another language";
    if (t->state != XLM_CLIENT_READY) return "no broker: the game goes on";
    switch (t->engine) {
    case XLM_ENGINE_READY: return t->device_lost ? "GPU lost: speaking on the CPU" : "connected";
    case XLM_ENGINE_RESTARTING: return "the model is started again";
    case XLM_ENGINE_FAILED: return "the model does not start";
    default: return "the model is loading";
    }
}

static void draw_state(SDL_Renderer *renderer, const game *g) {
    const talk *t = &g->talk;
    const int well = t->state == XLM_CLIENT_READY && t->engine == XLM_ENGINE_READY && !t->device_lost;
    char line[160];
    fill(renderer, well ? good : bad, 16, 80, 14, 14);
    snprintf(line, sizeof line, "%s   %.1f tokens/s   frame %" PRIu64, state_words(t), t->tokens_per_s, g->frames);
    label(renderer, light, 36, 77, line);
}

/* ---- the room -------------------------------------------------------------------------------------------------- */

static void draw_room(SDL_Renderer *renderer, const game *g, const assets *pictures) {
    const area room = layout_scene();
    const SDL_Rect to = {room.x, room.y, room.w, room.h}, from = {0, 0, room.w, room.h};
    int i;
    fill_area(renderer, dark, room);
    if (pictures->count > 0) SDL_RenderCopy(renderer, pictures->pieces[0], &from, &to);
    for (i = 1; i < pictures->count; i++) { /* the others hang on the wall */
        const SDL_Rect frame = {300 + (i - 1) % 6 * 62, 300 + (i - 1) / 6 * 62, 50, 50}, part = {0, 0, 200, 200};
        fill(renderer, ink, frame.x - 3, frame.y - 3, 56, 56);
        SDL_RenderCopy(renderer, pictures->pieces[i], &part, &frame);
    }
    label(renderer, light, room.x + 16, room.y + 2, level_plans[g->level.index].name);
    if (g->level.phase != LEVEL_PLAYING) label(renderer, light, 400, room.y + 2, "loading ...");
}

static void draw_person(SDL_Renderer *renderer, const game *g, int index) {
    const area at = layout_person(index);
    const npc *who = &g->npcs[index];
    const unsigned char *coat = npc_plans[index].coat;
    const colour cloth = {coat[0], coat[1], coat[2]};
    const int nod = who->mood == NPC_SPEAKING ? (int)(g->frames / 8 % 2) * 2 : 0;
    fill(renderer, cloth, at.x, at.y + 56, at.w, at.h - 56);
    fill(renderer, skin, at.x + 16, at.y + 4 + nod, 48, 48);
    fill(renderer, ink, at.x + 28, at.y + 20 + nod, 6, 6);
    fill(renderer, ink, at.x + 46, at.y + 20 + nod, 6, 6);
    fill(renderer, bad, at.x + 32, at.y + 38 + nod, 16, nod ? 6 : 3);
    label(renderer, index == g->listener ? light : dim, at.x + 8, at.y + at.h + 6, npc_plans[index].name);
    if (index == g->listener) fill(renderer, light, at.x + 8, at.y + at.h + 28, 60, 2);
}

#define MAX_LINES 16

static void draw_words(SDL_Renderer *renderer, const npc *who, area in) {
    wrap_line lines[MAX_LINES];
    const int fit = layout_lines(in) < MAX_LINES ? layout_lines(in) : MAX_LINES;
    const size_t count = wrap_tail(who->words, who->len, (size_t)layout_columns(in), lines, (size_t)fit);
    size_t i;
    for (i = 0; i < count; i++)
        text(renderer, ink, in.x + 8, in.y + 8 + (int)i * FONT_LINE * TEXT_SCALE, who->words + lines[i].start,
             lines[i].len);
}

static void draw_bubble(SDL_Renderer *renderer, const npc *who, int index) {
    const area in = layout_bubble(index), person = layout_person(index);
    if (who->mood == NPC_SILENT && who->len == 0) return;
    fill_area(renderer, paper, in);
    fill(renderer, paper, person.x + person.w / 2 - 8, in.y + in.h, 16, 14);
    if (who->mood == NPC_THINKING)
        label(renderer, ink, in.x + 8, in.y + 8, "...");
    else
        draw_words(renderer, who, in);
}

/* ---- the line below -------------------------------------------------------------------------------------------- */

static void draw_textbox(SDL_Renderer *renderer, const game *g) {
    const area in = layout_textbox();
    const size_t columns = (size_t)layout_columns(in) - 1;
    size_t start = 0;
    fill_area(renderer, g->box.open ? paper : dark, in);
    if (!g->box.open) {
        label(renderer, dim, in.x + 8, in.y + 10, "1-4 budget  Enter talk  Tab whom  C hush  L level  P pause  Esc");
        return;
    }
    while (utf8_count(g->box.text + start, g->box.len - start) >= columns)
        start += utf8_first(g->box.text + start, g->box.len - start, NULL);
    text(renderer, ink, in.x + 8, in.y + 10, g->box.text + start, g->box.len - start);
    fill(renderer, ink, in.x + 8 + (int)utf8_count(g->box.text + start, g->box.len - start) * FONT_ADVANCE * TEXT_SCALE,
         in.y + 8, 2, 24);
}

static void draw_news(SDL_Renderer *renderer, const game *g) {
    size_t len = strlen(g->talk.news);
    const size_t most = (WINDOW_WIDTH - 32) / (FONT_ADVANCE * TEXT_SCALE);
    while (utf8_count(g->talk.news, len) > most)
        len -= utf8_last(g->talk.news, len);
    text(renderer, dim, 16, 462, g->talk.news, len);
}

void view_draw(SDL_Renderer *renderer, const game *g, const assets *pictures) {
    static const colour night = {12, 12, 18};
    int i;
    fill(renderer, night, 0, 0, WINDOW_WIDTH, WINDOW_HEIGHT);
    draw_bar(renderer, &g->talk);
    draw_figures(renderer, &g->talk);
    draw_state(renderer, g);
    draw_room(renderer, g, pictures);
    for (i = 0; i < NPC_COUNT; i++) {
        draw_person(renderer, g, i);
        draw_bubble(renderer, &g->npcs[i], i);
    }
    draw_news(renderer, g);
    draw_textbox(renderer, g);
    if (g->paused) label(renderer, light, 440, 300, "pause");
}

int view_save(SDL_Renderer *renderer, const char *path) {
    SDL_Surface *picture =
        SDL_CreateRGBSurfaceWithFormat(0, WINDOW_WIDTH, WINDOW_HEIGHT, 32, SDL_PIXELFORMAT_ARGB8888);
    int saved;
    if (picture == NULL) return 0;
    saved = SDL_RenderReadPixels(renderer, NULL, SDL_PIXELFORMAT_ARGB8888, picture->pixels, picture->pitch) == 0 &&
            SDL_SaveBMP(picture, path) == 0;
    SDL_FreeSurface(picture);
    return saved;
}
