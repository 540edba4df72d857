#include "script.h"

#include <stdlib.h>
#include <string.h>

static const char *const verbs[] = {"key", "type", "wait", "frames", "shot", "print", "quit"};
static const char *const conditions[UNTIL_COUNT] = {"ready",    "gone",    "open",   "granted",
                                                    "resident", "playing", "pieces", "silent"};

static int find(const char *const *names, int count, const char *word) {
    int i;
    for (i = 0; i < count; i++)
        if (strcmp(names[i], word) == 0) return i;
    return -1;
}

/* A number of 1 and more that is all of `text`; 0: none. */
static long number(const char *text) {
    char *end = NULL;
    const long value = strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' && value >= 1 ? value : 0;
}

static int read_wait(script_step *step) {
    char *space = strchr(step->word, ' ');
    int found;
    step->number = 1;
    if (space) {
        *space = '\0';
        step->number = number(space + 1);
    }
    found = find(conditions, UNTIL_COUNT, step->word);
    step->until = found < 0 ? UNTIL_COUNT : (script_condition)found;
    return found >= 0 && step->number > 0;
}

/* Whether the line was understood. */
static int read_line(script_step *step, char *line) {
    char *rest = strchr(line, ' ');
    int verb;
    if (rest) *rest++ = '\0';
    verb = find(verbs, (int)(sizeof verbs / sizeof *verbs), line);
    if (verb < 0 || (rest == NULL) != (verb == SCRIPT_QUIT)) return 0;
    step->verb = (script_verb)verb;
    if (rest) strncpy(step->word, rest, SCRIPT_WORD - 1);
    if (verb == SCRIPT_WAIT) return read_wait(step);
    if (verb == SCRIPT_FRAMES) return (step->number = number(step->word)) > 0;
    return 1;
}

int script_read(script *into, const char *text) {
    int line_number = 0;
    memset(into, 0, sizeof *into);
    while (*text) {
        char line[SCRIPT_WORD] = "";
        const size_t len = strcspn(text, "\n");
        line_number++;
        if (len >= sizeof line || into->count == SCRIPT_STEPS) return line_number;
        memcpy(line, text, len);
        text += len + (text[len] == '\n');
        if (line[0] == '\0' || line[0] == '#') continue;
        if (!read_line(&into->steps[into->count], line)) return line_number;
        into->count++;
    }
    return 0;
}

script_step *script_now(script *of) {
    return of->at < of->count ? &of->steps[of->at] : NULL;
}
