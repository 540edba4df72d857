/* A character: who it is, and what it says now. */
#ifndef TAVERN_NPC_H
#define TAVERN_NPC_H

#include <stddef.h>

#define NPC_COUNT 2
#define NPC_WORDS 4096

typedef enum npc_mood { NPC_SILENT, NPC_THINKING, NPC_SPEAKING, NPC_LOST } npc_mood;

typedef struct npc_plan {
    const char *name, *persona;
    unsigned char coat[3];
} npc_plan;
extern const npc_plan npc_plans[NPC_COUNT];

typedef struct npc {
    npc_mood mood;
    char words[NPC_WORDS]; /* of the answer; if it is longer, its end */
    size_t len;
    unsigned pieces, answers, failures; /* pieces of this answer; answers that ended well, and not */
} npc;

/* It was asked something. */
void npc_asked(npc *who);
/* The next piece of its answer, in whole characters. */
void npc_hears(npc *who, const char *text, size_t len);
void npc_done(npc *who);
/* Its answer will not come, or not whole; `why` is shown instead of, or after, what it has said. */
void npc_failed(npc *who, const char *why);
/* Its conversation is gone (`lost`), or began anew. */
void npc_forgot(npc *who, int lost);
int npc_busy(const npc *who);

#endif
