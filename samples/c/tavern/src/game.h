/* All of the game's state. One thread owns it. */
#ifndef TAVERN_GAME_H
#define TAVERN_GAME_H

#include <xlm/xlm.h>

#include "level.h"
#include "npc.h"
#include "script.h"
#include "textbox.h"

#define BUDGET_COUNT 4
#define NEWS_BYTES 160

/* Keys 1 to 4, in MiB. */
extern const uint64_t budget_mib[BUDGET_COUNT];

typedef struct game game;

/* An npc as its session's callback knows it. */
typedef struct voice {
    game *of;
    int npc;
    xlm_session *session;
    int open;
} voice;

/* The model's side: what talk.c keeps. */
typedef struct talk {
    xlm_client *client;
    voice voices[NPC_COUNT];
    xlm_client_state state;
    xlm_engine_state engine;
    int device_lost;
    unsigned asked;          /* budgets and reservations without an answer yet */
    int status_asked;
    xlm_lease lease;         /* the last one; used_bytes and granted_bytes also from the last status */
    uint64_t device_total_bytes, resident_bytes;
    double tokens_per_s;
    char news[NEWS_BYTES];   /* the last notice or error */
    uint64_t calls, calls_ns, longest_call_ns; /* of the library, on this thread */
    unsigned disconnections;
} talk;

struct game {
    talk talk;
    npc npcs[NPC_COUNT];
    int listener; /* who is talked to */
    textbox box;
    level level;
    int budget;   /* which of budget_mib */
    int paused, hidden, running;
    xlm_pacing pacing;
    uint32_t max_tokens;
    double temperature;
    uint64_t frames, begun_ns;
    script script;
    long script_left; /* frames to let pass */
    const char *shot; /* to be saved after this frame's drawing; or NULL */
};

/* A clock in nanoseconds, from anywhere. */
uint64_t game_now_ns(void);

#endif
