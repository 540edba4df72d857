#include "input.h"

#include <stdio.h>
#include <string.h>

#include "report.h"
#include "talk.h"
#include "utf8.h"

static void choose_budget(game *g, int which) {
    g->budget = which;
    talk_budget(g);
}

static void pause(game *g, int paused, int hidden) {
    if (g->paused == paused && g->hidden == hidden) return;
    g->paused = paused;
    g->hidden = hidden;
    talk_budget(g); /* in a pause the model may have it all; afterwards what was chosen */
}

static void key_in_game(game *g, assets *pictures, SDL_Keycode key) {
    if (key >= SDLK_1 && key < SDLK_1 + BUDGET_COUNT) choose_budget(g, (int)(key - SDLK_1));
    switch (key) {
    case SDLK_RETURN: textbox_open(&g->box); break;
    case SDLK_TAB: g->listener = (g->listener + 1) % NPC_COUNT; break;
    case SDLK_c: talk_hush(g); break;
    case SDLK_p: pause(g, !g->paused, g->hidden); break;
    case SDLK_l:
        assets_free(pictures); /* first give, then ask */
        level_enter(&g->level, (g->level.index + 1) % LEVEL_COUNT);
        break;
    case SDLK_ESCAPE: g->running = 0; break;
    default: break;
    }
}

static void key_in_textbox(game *g, SDL_Keycode key) {
    if (key == SDLK_BACKSPACE) textbox_erase(&g->box);
    if (key == SDLK_RETURN) talk_say(g, g->box.text, g->box.len);
    if (key == SDLK_RETURN || key == SDLK_ESCAPE) textbox_close(&g->box);
}

static void window(game *g, Uint8 what) {
    if (what == SDL_WINDOWEVENT_MINIMIZED) pause(g, g->paused, 1);
    if (what == SDL_WINDOWEVENT_RESTORED) pause(g, g->paused, 0);
}

void input_take(game *g, assets *pictures) {
    SDL_Event event;
    while (SDL_PollEvent(&event)) {
        if (event.type == SDL_QUIT) g->running = 0;
        if (event.type == SDL_WINDOWEVENT) window(g, event.window.event);
        if (event.type == SDL_TEXTINPUT && g->box.open) textbox_type(&g->box, event.text.text);
        if (event.type != SDL_KEYDOWN) continue;
        if (g->box.open)
            key_in_textbox(g, event.key.keysym.sym);
        else
            key_in_game(g, pictures, event.key.keysym.sym);
    }
}

/* ---- the script ------------------------------------------------------------------------------------------------ */

static void press(const char *name) {
    SDL_Event event;
    memset(&event, 0, sizeof event);
    event.type = SDL_KEYDOWN;
    event.key.state = SDL_PRESSED;
    event.key.keysym.sym = SDL_GetKeyFromName(name);
    SDL_PushEvent(&event);
}

static void type(const char *words) {
    const size_t len = strlen(words);
    size_t at = 0;
    while (at < len) { /* a character an event, as a keyboard does it */
        const size_t size = utf8_first(words + at, len - at, NULL);
        SDL_Event event;
        memset(&event, 0, sizeof event);
        event.type = SDL_TEXTINPUT;
        memcpy(event.text.text, words + at, size);
        SDL_PushEvent(&event);
        at += size;
    }
}

static int nobody_speaks(const game *g) {
    int i, busy = 0;
    for (i = 0; i < NPC_COUNT; i++)
        busy |= npc_busy(&g->npcs[i]);
    return !busy;
}

static int all_open(const game *g) {
    int i, open = 1;
    for (i = 0; i < NPC_COUNT; i++)
        open &= g->talk.voices[i].open;
    return open;
}

static int holds(const game *g, const script_step *step) {
    switch (step->until) {
    case UNTIL_READY: return g->talk.state == XLM_CLIENT_READY && g->talk.engine == XLM_ENGINE_READY;
    case UNTIL_GONE: return g->talk.state != XLM_CLIENT_READY;
    case UNTIL_OPEN: return all_open(g);
    case UNTIL_GRANTED: return g->talk.asked == 0;
    case UNTIL_RESIDENT: return g->talk.resident_bytes >= (uint64_t)step->number << 20;
    case UNTIL_PLAYING: return g->level.phase == LEVEL_PLAYING;
    case UNTIL_PIECES: return (long)g->npcs[g->listener].pieces >= step->number;
    case UNTIL_SILENT: return nobody_speaks(g);
    default: return 1;
    }
}

/* Whether the step is over. */
static int do_step(game *g, const assets *pictures, script_step *step) {
    switch (step->verb) {
    case SCRIPT_KEY: press(step->word); break;
    case SCRIPT_TYPE: type(step->word); break;
    case SCRIPT_WAIT: return holds(g, step);
    case SCRIPT_FRAMES: return --step->number < 0;
    case SCRIPT_SHOT: g->shot = step->word; break;
    case SCRIPT_PRINT: report_print(g, pictures, step->word); break;
    case SCRIPT_QUIT: g->running = 0; break;
    }
    return 1;
}

void input_play(game *g, const assets *pictures) {
    script_step *step = script_now(&g->script);
    if (step && do_step(g, pictures, step)) g->script.at++;
}
