/* A game as it was written for xlm 0.1: compiled with that version's header, run on today's library. */
#include <inttypes.h>
#include <stdio.h>

#include "xlm.h"

#define WAIT_NS UINT64_C(60000000000) /* only bounds a failure */

typedef struct seen {
    int state, opened, lease, status, tokens, done, unknown;
} seen;

static void on_event(void *user_data, const xlm_event *event) {
    seen *s = user_data;
    switch (event->kind) {
    case XLM_EVENT_STATE: s->state += event->state == XLM_CLIENT_READY; break;
    case XLM_EVENT_SESSION_OPENED: s->opened += event->text.len > 0; break;
    case XLM_EVENT_LEASE: s->lease += event->lease != NULL && event->lease->granted_bytes == (UINT64_C(64) << 20); break;
    case XLM_EVENT_STATUS: s->status += event->status != NULL && event->status->json.len > 0; break;
    case XLM_EVENT_TOKENS:
        s->tokens += event->n_token_ids > 0;
        printf("%.*s", (int)event->text.len, event->text.data);
        break;
    case XLM_EVENT_DONE:
        s->done += event->finish_reason == XLM_FINISH_STOP && event->usage->completion_tokens > 0;
        printf("\n");
        break;
    default: s->unknown++; break;
    }
}

static int fail(const char *what) {
    xlm_error error = XLM_ERROR_INIT;
    xlm_last_error(&error);
    fprintf(stderr, "%s: %.*s\n", what, (int)error.message.len, error.message.data);
    return 1;
}

static int ask(xlm_client *client, xlm_session **session) {
    xlm_budget budget = XLM_BUDGET_INIT;
    xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
    xlm_say_options how = XLM_SAY_OPTIONS_INIT;
    xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    xlm_str stop = XLM_STR_LITERAL("THE END");
    uint64_t ticket = 0, answer = 0;

    budget.cap_bytes = UINT64_C(64) << 20;
    budget.deadline_ns = 16000000;
    if (xlm_client_set_budget(client, &budget, &ticket) != XLM_SUCCESS || ticket == 0) return fail("set_budget");
    if (xlm_client_request_status(client, &ticket) != XLM_SUCCESS) return fail("request_status");
    frame.frame_ns = 15000000;
    if (xlm_frame(client, &frame) != XLM_SUCCESS) return fail("frame");
    character.system = xlm_str_from("You are Greta.");
    if (xlm_session_open(client, &character, session) != XLM_SUCCESS) return fail("open");
    how.temperature = 0.0;
    how.stop = &stop;
    how.n_stop = 1;
    if (xlm_session_say(*session, xlm_str_from("Hello"), &how, &answer) != XLM_SUCCESS) return fail("say");
    return 0;
}

int main(void) {
    seen s = {0, 0, 0, 0, 0, 0, 0};
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    xlm_session_info info = XLM_SESSION_INFO_INIT;
    xlm_lease lease = XLM_LEASE_INIT;
    xlm_client *client = NULL;
    xlm_session *session = NULL;

    if (xlm_version() < XLM_VERSION) return fail("the library is older than this program");
    options.name = xlm_str_from("old");
    options.on_event = on_event;
    options.user_data = &s;
    if (xlm_client_create(&options, &client) != XLM_SUCCESS) return fail("create");
    if (xlm_client_ready_wait(client, WAIT_NS) != XLM_SUCCESS) return fail("ready_wait");
    if (ask(client, &session) != 0) return 1;
    while (s.done == 0 || s.lease == 0 || s.status == 0) {
        if (xlm_client_event_wait(client, WAIT_NS) != XLM_SUCCESS) return fail("event_wait");
        if (xlm_client_poll(client, UINT64_MAX) < 0) return fail("poll");
    }
    if (xlm_session_get_info(session, &info) != XLM_SUCCESS || info.state != XLM_SESSION_OPEN) return fail("get_info");
    if (xlm_client_get_lease(client, &lease) != XLM_SUCCESS || lease.cap_bytes != UINT64_C(64) << 20) return fail("lease");
    if (xlm_session_cancel(session, 0) != XLM_SUCCESS || xlm_session_close(session) != XLM_SUCCESS) return fail("close");
    if (xlm_client_destroy(client) != XLM_SUCCESS) return fail("destroy");
    return s.state == 1 && s.opened == 1 && s.tokens > 0 && s.unknown == 0 ? 0 : 1;
}
