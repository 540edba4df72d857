#include "talk.h"

#include <stdio.h>
#include <string.h>

#define FRAME_NS 16000000u     /* the deadline of budgets: bytes shall be free within a frame */
#define POLL_NS 200000u        /* at most 0.2 ms of callbacks a frame */
#define STATUS_EACH 20u        /* frames between two questions for the broker's state */

/* Measures a call of the library, to show that none blocks. */
static uint64_t begin_call(void) {
    return game_now_ns();
}

static void end_call(talk *t, uint64_t began_ns) {
    const uint64_t took_ns = game_now_ns() - began_ns;
    t->calls++;
    t->calls_ns += took_ns;
    if (took_ns > t->longest_call_ns) t->longest_call_ns = took_ns;
}

static void news(talk *t, xlm_str text) {
    const size_t len = text.len < NEWS_BYTES ? text.len : NEWS_BYTES - 1;
    if (len) memcpy(t->news, text.data, len); /* may cut a character: only the picture of it is lost */
    t->news[len] = '\0';
}

static void last_error(xlm_error *error) {
    const xlm_error none = XLM_ERROR_INIT;
    *error = none;
    xlm_last_error(error);
}

/* What a player is told: no internals. */
static const char *excuse(xlm_result result) {
    if (xlm_is_disconnected(result)) return "lost in thought: no broker";
    switch (result) {
    case XLM_ERROR_SESSION_UNKNOWN: return "does not know you any more";
    case XLM_ERROR_SESSION_BUSY: return "is speaking";
    case XLM_ERROR_CONTEXT_OVERFLOW: return "has heard enough for today";
    default: return "says nothing";
    }
}

/* ---- what arrives, within xlm_client_poll() ------------------------------------------------------------------- */

/* The engine tells it now and then, and what is used after each release: it may be older. */
static void bound_resident(talk *t) {
    if (t->resident_bytes > t->lease.used_bytes) t->resident_bytes = t->lease.used_bytes;
}

static void take_lease(talk *t, const xlm_lease *lease) {
    t->lease = *lease;
    bound_resident(t);
}

static void on_lease(game *g, const xlm_event *event) {
    talk *t = &g->talk;
    if (t->asked > 0) t->asked--;
    if (event->lease) take_lease(t, event->lease);
    level_answered(&g->level, event->id, event->lease && event->lease->deadline_met);
}

static void on_status(talk *t, const xlm_status_info *status) {
    t->status_asked = 0;
    if (status == NULL) return;
    t->engine = status->engine_state;
    t->device_lost = (int)status->device_lost;
    t->device_total_bytes = status->device_total_bytes;
    t->lease.used_bytes = status->device_used_bytes;
    t->resident_bytes = status->resident_bytes;
    bound_resident(t);
    t->lease.granted_bytes = status->budget_bytes;
    t->tokens_per_s = status->tokens_per_s;
}

static void on_state(talk *t, xlm_client_state state) {
    if (state != XLM_CLIENT_READY && t->state == XLM_CLIENT_READY) t->disconnections++;
    if (state != XLM_CLIENT_READY) t->engine = XLM_ENGINE_UNKNOWN;
    t->state = state;
}

static void on_event(void *user_data, const xlm_event *event) {
    game *g = user_data;
    if (event->error) news(&g->talk, event->error->message);
    switch (event->kind) {
    case XLM_EVENT_STATE: on_state(&g->talk, event->state); break;
    case XLM_EVENT_LEASE: on_lease(g, event); break;
    case XLM_EVENT_STATUS: on_status(&g->talk, event->status); break;
    case XLM_EVENT_NOTICE:
        news(&g->talk, event->text);
        if (event->lease) take_lease(&g->talk, event->lease);
        break;
    default: break; /* a newer library may tell more */
    }
}

static void on_voice(void *user_data, const xlm_event *event) {
    voice *v = user_data;
    npc *who = &v->of->npcs[v->npc];
    switch (event->kind) {
    case XLM_EVENT_SESSION_OPENED:
    case XLM_EVENT_SESSION_RESUMED: v->open = 1; break;
    case XLM_EVENT_SESSION_RESET:
        v->open = 1;
        npc_forgot(who, 0);
        break;
    case XLM_EVENT_SESSION_LOST:
        v->open = 0;
        npc_forgot(who, 1);
        news(&v->of->talk, event->error->message);
        break;
    case XLM_EVENT_TOKENS: npc_hears(who, event->text.data, event->text.len); break;
    case XLM_EVENT_DONE: npc_done(who); break;
    case XLM_EVENT_FAILED:
        npc_failed(who, excuse(event->error->result));
        news(&v->of->talk, event->error->message);
        break;
    default: break;
    }
}

/* ---- what is asked --------------------------------------------------------------------------------------------- */

static int open_voice(game *g, int npc) {
    voice *v = &g->talk.voices[npc];
    xlm_session_options options = XLM_SESSION_OPTIONS_INIT;
    v->of = g;
    v->npc = npc;
    options.system = xlm_str_from(npc_plans[npc].persona);
    options.overflow = XLM_OVERFLOW_SHIFT;
    options.on_event = on_voice;
    options.user_data = v;
    return xlm_session_open(g->talk.client, &options, &v->session) == XLM_SUCCESS;
}

int talk_begin(game *g, const char *endpoint) {
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    const xlm_lease nothing = XLM_LEASE_INIT;
    int i, good;
    g->talk.lease = nothing;
    options.name = xlm_str_from("tavern");
    options.endpoint = xlm_str_from(endpoint);
    options.on_event = on_event;
    options.user_data = g;
    good = xlm_client_create(&options, &g->talk.client) == XLM_SUCCESS;
    for (i = 0; good && i < NPC_COUNT; i++)
        good = open_voice(g, i);
    if (!good) {
        xlm_error error;
        last_error(&error);
        fprintf(stderr, "tavern: %.*s\n", (int)error.message.len, error.message.data);
    }
    return good;
}

/* Cap and reservation are asked for again by the library after a reconnection: no event of ours tells. */
static void look_at_wishes(talk *t) {
    xlm_lease lease = XLM_LEASE_INIT;
    xlm_client_get_lease(t->client, &lease);
    t->lease.cap_bytes = lease.cap_bytes;
    t->lease.reserved_bytes = lease.reserved_bytes;
}

void talk_poll(game *g) {
    talk *t = &g->talk;
    uint64_t began_ns = begin_call();
    xlm_client_poll(t->client, POLL_NS);
    look_at_wishes(t);
    end_call(t, began_ns);
    if (t->state != XLM_CLIENT_READY || t->status_asked || g->frames % STATUS_EACH) return;
    began_ns = begin_call();
    t->status_asked = xlm_client_request_status(t->client, NULL) == XLM_SUCCESS;
    end_call(t, began_ns);
}

void talk_frame(game *g, uint64_t frame_ns, uint64_t target_ns) {
    xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    const uint64_t began_ns = begin_call();
    frame.pacing = g->pacing;
    frame.frame_ns = frame_ns;
    frame.target_ns = target_ns;
    xlm_frame(g->talk.client, &frame);
    end_call(&g->talk, began_ns);
}

void talk_say(game *g, const char *text, size_t len) {
    xlm_say_options how = XLM_SAY_OPTIONS_INIT;
    npc *who = &g->npcs[g->listener];
    xlm_str words;
    xlm_result result;
    uint64_t began_ns;
    if (len == 0 || npc_busy(who)) return;
    words.data = text;
    words.len = len;
    how.max_tokens = g->max_tokens;
    how.temperature = g->temperature;
    npc_asked(who);
    began_ns = begin_call();
    result = xlm_session_say(g->talk.voices[g->listener].session, words, &how, NULL);
    end_call(&g->talk, began_ns);
    if (result != XLM_SUCCESS) npc_failed(who, excuse(result));
}

void talk_hush(game *g) {
    const uint64_t began_ns = begin_call();
    xlm_session_cancel(g->talk.voices[g->listener].session, 0);
    end_call(&g->talk, began_ns);
}

/* An answer is to come, or there is none: the wish is kept by the library all the same. */
static uint64_t asked(game *g, xlm_result result, uint64_t ticket, uint64_t began_ns) {
    end_call(&g->talk, began_ns);
    if (result != XLM_SUCCESS) return 0;
    g->talk.asked++;
    return ticket;
}

void talk_budget(game *g) {
    xlm_budget budget = XLM_BUDGET_INIT;
    const uint64_t began_ns = begin_call();
    uint64_t ticket = 0;
    xlm_result result;
    if (!g->paused && !g->hidden) budget.cap_bytes = budget_mib[g->budget] << 20;
    budget.deadline_ns = FRAME_NS;
    result = xlm_client_set_budget(g->talk.client, &budget, &ticket);
    asked(g, result, ticket, began_ns);
}

uint64_t talk_reserve(game *g, uint64_t bytes) {
    const uint64_t began_ns = begin_call();
    uint64_t ticket = 0;
    const xlm_result result = xlm_client_reserve(g->talk.client, bytes, FRAME_NS, &ticket);
    return asked(g, result, ticket, began_ns);
}

void talk_end(game *g) {
    xlm_client_destroy(g->talk.client);
    g->talk.client = NULL;
}
