/* A player made of text: one step a line, at most one a frame. For tests and for demonstrations.
 *
 *     key NAME        presses a key, as SDL names it: 1, Return, Tab, L, Escape ...
 *     type TEXT       types text into the open textbox
 *     wait CONDITION [N]   goes on once it holds: script_condition says which there are
 *     frames N        lets N frames pass
 *     shot FILE       saves what was drawn as a BMP file
 *     print WORD      prints the state as a line of JSON that begins with this word
 *     quit
 *
 * Empty lines and lines with # are left out. */
#ifndef TAVERN_SCRIPT_H
#define TAVERN_SCRIPT_H

#include <stddef.h>

#define SCRIPT_STEPS 128
#define SCRIPT_WORD 240

typedef enum script_verb {
    SCRIPT_KEY,
    SCRIPT_TYPE,
    SCRIPT_WAIT,
    SCRIPT_FRAMES,
    SCRIPT_SHOT,
    SCRIPT_PRINT,
    SCRIPT_QUIT
} script_verb;

typedef enum script_condition {
    UNTIL_READY,    /* connected, and the model is loaded */
    UNTIL_GONE,     /* no broker */
    UNTIL_OPEN,     /* both conversations are open */
    UNTIL_GRANTED,  /* no budget under way is unanswered */
    UNTIL_RESIDENT, /* at least N MiB of the model are resident (1 where none is given) */
    UNTIL_PLAYING,  /* the level is loaded */
    UNTIL_PIECES,   /* whoever is listened to has said N pieces (1 where none is given) */
    UNTIL_SILENT,   /* nobody speaks */
    UNTIL_COUNT
} script_condition;

typedef struct script_step {
    script_verb verb;
    char word[SCRIPT_WORD];
    long number; /* frames; N of a condition */
    script_condition until;
} script_step;

typedef struct script {
    script_step steps[SCRIPT_STEPS];
    int count, at;
} script;

/* Reads a script. 0: all is well; else the number of the first line that is not understood. */
int script_read(script *into, const char *text);
/* The step to do now; NULL at the end. */
script_step *script_now(script *of);

#endif
