#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void string(const char *name, const char *text, size_t len) {
    size_t i;
    printf("\"%s\": \"", name);
    for (i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < ' ')
            printf("\\u%04x", c);
        else
            printf(c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    printf("\", ");
}

static void figure(const char *name, uint64_t value) {
    printf("\"%s\": %" PRIu64 ", ", name, value);
}

static void print_npc(const npc *who, int index) {
    static const char *const moods[] = {"silent", "thinking", "speaking", "lost"};
    printf(index ? ", {" : "{");
    string("name", npc_plans[index].name, strlen(npc_plans[index].name));
    string("mood", moods[who->mood], strlen(moods[who->mood]));
    string("words", who->words, who->len);
    figure("pieces", who->pieces);
    figure("failures", who->failures);
    printf("\"answers\": %u}", who->answers);
}

static void print_model(const talk *t) {
    static const char *const states[] = {"connecting", "ready", "failed"};
    string("state", states[t->state], strlen(states[t->state]));
    string("news", t->news, strlen(t->news));
    figure("granted_bytes", t->lease.granted_bytes);
    figure("used_bytes", t->lease.used_bytes);
    figure("resident_bytes", t->resident_bytes);
    figure("reserved_bytes", t->lease.reserved_bytes);
    figure("cap_bytes", t->lease.cap_bytes);
    figure("device_total_bytes", t->device_total_bytes);
    figure("disconnections", t->disconnections);
    figure("calls", t->calls);
    figure("calls_ns", t->calls_ns);
    figure("longest_call_ns", t->longest_call_ns);
}

void report_print(const game *g, const assets *pictures, const char *word) {
    int i;
    printf("{");
    string("at", word, strlen(word));
    figure("frames", g->frames);
    figure("elapsed_ns", game_now_ns() - g->begun_ns);
    print_model(&g->talk);
    string("level", level_plans[g->level.index].name, strlen(level_plans[g->level.index].name));
    figure("loads", (uint64_t)g->level.loads);
    figure("in_time", (uint64_t)g->level.in_time);
    figure("texture_bytes", assets_bytes(pictures));
    printf("\"npcs\": [");
    for (i = 0; i < NPC_COUNT; i++)
        print_npc(&g->npcs[i], i);
    printf("]}\n");
    fflush(stdout);
}
