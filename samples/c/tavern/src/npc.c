#include "npc.h"

#include <string.h>

#include "utf8.h"

const npc_plan npc_plans[NPC_COUNT] = {
    {"Greta", "You are Greta, who keeps the tavern The Copper Kettle. You are warm and short of words. "
              "Answer in one or two plain sentences.", {150, 60, 50}},
    {"Odo", "You are Odo, a travelling bard who sits in the tavern The Copper Kettle. You know every rumour. "
            "Answer in one or two plain sentences.", {60, 90, 150}},
};

void npc_asked(npc *who) {
    who->mood = NPC_THINKING;
    who->len = 0;
    who->pieces = 0;
}

/* Lets go of the oldest whole characters until `room` bytes are free. */
static void make_room(npc *who, size_t room) {
    size_t dropped = 0;
    if (NPC_WORDS - who->len >= room) return;
    while (dropped < who->len && NPC_WORDS - (who->len - dropped) < room)
        dropped += utf8_first(who->words + dropped, who->len - dropped, NULL);
    memmove(who->words, who->words + dropped, who->len - dropped);
    who->len -= dropped;
}

static void append(npc *who, const char *text, size_t len) {
    while (len > NPC_WORDS) { /* more than all there is: its end */
        const size_t size = utf8_first(text, len, NULL);
        text += size;
        len -= size;
    }
    make_room(who, len);
    if (len) memcpy(who->words + who->len, text, len);
    who->len += len;
}

void npc_hears(npc *who, const char *text, size_t len) {
    who->mood = NPC_SPEAKING;
    who->pieces++;
    append(who, text, len);
}

void npc_done(npc *who) {
    who->mood = NPC_SILENT;
    who->answers++;
}

void npc_failed(npc *who, const char *why) {
    if (who->mood != NPC_LOST) who->mood = NPC_SILENT;
    who->failures++;
    append(who, who->len ? " (" : "(", who->len ? 2 : 1);
    append(who, why, strlen(why));
    append(who, ")", 1);
}

void npc_forgot(npc *who, int lost) {
    if (lost) who->mood = NPC_LOST;
}

int npc_busy(const npc *who) {
    return who->mood == NPC_THINKING || who->mood == NPC_SPEAKING;
}
