/* The tavern: two characters, one budget. See README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "assets.h"
#include "input.h"
#include "layout.h"
#include "report.h"
#include "talk.h"
#include "view.h"

typedef struct options {
    const char *endpoint, *script;
    int fps, software;
} options;

typedef struct screen {
    SDL_Window *window;
    SDL_Renderer *renderer;
    assets pictures;
} screen;

/* ---- the command line ------------------------------------------------------------------------------------------ */

static int usage(void) {
    fprintf(stderr,
            "usage: tavern [--endpoint ADDRESS] [--pacing off|steps|shrink] [--fps N] [--max-tokens N]\n"
            "              [--temperature T] [--software] [--script FILE]\n"
            "Start a broker first: xlm-broker --model demo --budget-from-game\n");
    return 0;
}

static int read_pacing(game *g, const char *word) {
    static const char *const names[] = {"off", "steps", "shrink"};
    int i;
    for (i = 0; i < 3; i++)
        if (strcmp(names[i], word) == 0) {
            g->pacing = (xlm_pacing)i;
            return 1;
        }
    return usage();
}

static int read_option(game *g, options *o, const char *name, const char *value) {
    if (strcmp(name, "--endpoint") == 0) return (o->endpoint = value) != NULL;
    if (strcmp(name, "--script") == 0) return (o->script = value) != NULL;
    if (strcmp(name, "--pacing") == 0) return read_pacing(g, value);
    if (strcmp(name, "--fps") == 0) return (o->fps = atoi(value)) > 0 || usage();
    if (strcmp(name, "--max-tokens") == 0) return (g->max_tokens = (uint32_t)atoi(value)) > 0 || usage();
    if (strcmp(name, "--temperature") == 0) return (g->temperature = atof(value)) >= 0 || usage();
    return usage();
}

static int read_options(game *g, options *o, int argc, char **argv) {
    int i;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--software") == 0)
            o->software = 1;
        else if (i + 1 == argc || !read_option(g, o, argv[i], argv[i + 1]))
            return i + 1 == argc ? usage() : 0;
        else
            i++;
    }
    return 1;
}

static int load_script(game *g, const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "rb");
    size_t len;
    int line;
    if (file == NULL) {
        perror(path);
        return 0;
    }
    len = fread(text, 1, sizeof text - 1, file);
    text[len] = '\0';
    fclose(file);
    line = script_read(&g->script, text);
    if (line) fprintf(stderr, "%s:%d: not understood; src/script.h says what can be written\n", path, line);
    return line == 0;
}

/* ---- the window ------------------------------------------------------------------------------------------------ */

static int open_screen(screen *s, int software) {
    if (SDL_Init(SDL_INIT_VIDEO) != 0) return 0;
    s->window = SDL_CreateWindow("The Copper Kettle", 0, 0, WINDOW_WIDTH, WINDOW_HEIGHT, SDL_WINDOW_SHOWN);
    if (s->window == NULL) return 0;
    s->renderer = SDL_CreateRenderer(s->window, -1, software ? SDL_RENDERER_SOFTWARE : 0);
    if (s->renderer == NULL) s->renderer = SDL_CreateRenderer(s->window, -1, SDL_RENDERER_SOFTWARE);
    return s->renderer != NULL;
}

static void close_screen(screen *s) {
    assets_free(&s->pictures);
    if (s->renderer) SDL_DestroyRenderer(s->renderer);
    if (s->window) SDL_DestroyWindow(s->window);
    SDL_Quit();
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

static void play_level(game *g, screen *s) {
    switch (level_next(&g->level)) {
    case LEVEL_DO_ASK: level_asked(&g->level, talk_reserve(g, level_bytes(g->level.index))); break;
    case LEVEL_DO_LOAD_PIECE:
        if (!assets_load_piece(&s->pictures, s->renderer, g->level.index)) fprintf(stderr, "tavern: no memory\n");
        level_piece_loaded(&g->level);
        break;
    default: break;
    }
}

static void draw(game *g, screen *s) {
    view_draw(s->renderer, g, &s->pictures);
    if (g->shot && !view_save(s->renderer, g->shot)) fprintf(stderr, "tavern: %s: %s\n", g->shot, SDL_GetError());
    g->shot = NULL;
    SDL_RenderPresent(s->renderer);
}

static void wait_for_next(uint64_t frame_began_ns, uint64_t target_ns) {
    const uint64_t used_ns = game_now_ns() - frame_began_ns;
    if (used_ns < target_ns) SDL_Delay((Uint32)((target_ns - used_ns) / 1000000u));
}

static void run(game *g, screen *s, uint64_t target_ns) {
    uint64_t began_ns = game_now_ns();
    g->begun_ns = began_ns;
    while (g->running) {
        const int meant = g->level.phase == LEVEL_PLAYING && !g->paused && !g->hidden;
        uint64_t now_ns;
        input_play(g, &s->pictures);
        input_take(g, &s->pictures);
        talk_poll(g);
        play_level(g, s);
        draw(g, s);
        g->frames++;
        wait_for_next(began_ns, target_ns);
        now_ns = game_now_ns();
        if (meant) talk_frame(g, now_ns - began_ns, target_ns);
        began_ns = now_ns;
    }
}

int main(int argc, char **argv) {
    static game g;
    screen s = {NULL, NULL, {{NULL}, 0}};
    options o = {NULL, NULL, 60, 0};
    int good;
    g.running = 1;
    g.pacing = XLM_PACING_STEPS;
    g.max_tokens = 96;
    g.temperature = 0.7;
    if (!read_options(&g, &o, argc, argv)) return 2;
    if (o.script && !load_script(&g, o.script)) return 2;
    good = open_screen(&s, o.software);
    if (!good) fprintf(stderr, "tavern: %s\n", SDL_GetError());
    good = good && talk_begin(&g, o.endpoint);
    if (good) {
        talk_budget(&g);
        run(&g, &s, 1000000000u / (uint64_t)o.fps);
    }
    if (g.talk.client) talk_end(&g);
    close_screen(&s);
    return good ? 0 : 1;
}
