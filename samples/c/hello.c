/* The shortest game: it gives the model a budget, says one thing, and prints the answer as it comes.
 *
 *     cc hello.c $(pkg-config --cflags --libs xlm) -o hello
 *     ../../.venv/bin/xlm-broker --model demo --budget-from-game &
 *     ./hello "Can you repair my sword?"
 */
#include <inttypes.h>
#include <stdio.h>

#include <xlm/xlm.h>

typedef struct game {
    int done; /* 1: answered, -1: it went wrong */
} game;

static void complain(const xlm_error *error) {
    fprintf(stderr, "%.*s: %.*s (%.*s)\n", (int)error->name.len, error->name.data, (int)error->message.len,
            error->message.data, (int)error->hint.len, error->hint.data);
}

static void complain_of_last(void) {
    xlm_error error = XLM_ERROR_INIT;
    xlm_last_error(&error);
    complain(&error);
}

/* Called within xlm_client_poll(), and nowhere else. */
static void on_event(void *user_data, const xlm_event *event) {
    game *g = user_data;
    switch (event->kind) {
    case XLM_EVENT_LEASE:
        if (event->lease)
            printf("[the model may use %" PRIu64 " MiB]\n", event->lease->granted_bytes >> 20);
        break;
    case XLM_EVENT_TOKENS:
        fwrite(event->text.data, 1, event->text.len, stdout);
        fflush(stdout);
        break;
    case XLM_EVENT_DONE:
        printf("\n[%" PRIu32 " tokens]\n", event->usage->completion_tokens);
        g->done = 1;
        break;
    case XLM_EVENT_FAILED:
    case XLM_EVENT_SESSION_LOST:
        complain(event->error);
        g->done = -1;
        break;
    case XLM_EVENT_STATE:
        if (event->error && event->error->result != XLM_ERROR_NOT_READY) complain(event->error); /* met, and lost */
        break;
    default: break;
    }
}

static int talk(xlm_client *client, game *g, const char *words) {
    xlm_budget budget = XLM_BUDGET_INIT;
    xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
    xlm_say_options how = XLM_SAY_OPTIONS_INIT;
    xlm_session *greta = NULL;

    budget.cap_bytes = 256u << 20;
    xlm_client_set_budget(client, &budget, NULL);

    character.system = xlm_str_from("You are Greta, a blacksmith. Answer in one short sentence.");
    if (xlm_session_open(client, &character, &greta) != XLM_SUCCESS) return -1;
    how.max_tokens = 64;
    if (xlm_session_say(greta, xlm_str_from(words), &how, NULL) != XLM_SUCCESS) return -1;

    while (g->done == 0) {                           /* a game has its frame here */
        xlm_client_event_wait(client, 100000000);    /* and does not wait */
        if (xlm_client_poll(client, 1000000) < 0) return -1;
    }
    return g->done == 1 ? 0 : 1;
}

/* A broker that was started just now takes some seconds to answer. */
static int meet(xlm_client *client) {
    if (xlm_client_ready_wait(client, 1000000000u) == XLM_SUCCESS) return 1;
    fprintf(stderr, "[no broker answers yet; waiting for one that starts, for 30 s]\n");
    return xlm_client_ready_wait(client, 30000000000u) == XLM_SUCCESS;
}

int main(int argc, char **argv) {
    game g = {0};
    xlm_client *client = NULL;
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    int status;

    options.name = xlm_str_from("hello");
    options.on_event = on_event;
    options.user_data = &g;
    if (xlm_client_create(&options, &client) != XLM_SUCCESS || !meet(client)) {
        complain_of_last();
        xlm_client_destroy(client);
        return 1;
    }
    status = talk(client, &g, argc > 1 ? argv[1] : "Can you repair my sword?");
    if (status < 0) complain_of_last();
    xlm_client_destroy(client);
    return status == 0 ? 0 : 1;
}
