#include "wrap.h"

#include <string.h>

#include "utf8.h"

typedef struct cut {
    size_t end, next; /* of this line's text; where the next line starts */
} cut;

/* Where the line that starts at `start` ends. */
static cut cut_line(const char *text, size_t len, size_t start, size_t columns) {
    cut at_space = {0, 0}, here = {start, start};
    size_t column = 0;
    while (here.end < len && text[here.end] != '\n') {
        if (text[here.end] == ' ') {
            at_space.end = here.end;
            at_space.next = here.end + 1;
        }
        if (column == columns) return at_space.next > start ? at_space : here;
        here.end += utf8_first(text + here.end, len - here.end, NULL);
        here.next = here.end;
        column++;
    }
    here.next = here.end + (here.end < len); /* past the line end */
    return here;
}

static size_t keep(wrap_line *lines, size_t count, size_t capacity, wrap_line line) {
    if (count == capacity) {
        memmove(lines, lines + 1, (capacity - 1) * sizeof *lines);
        count--;
    }
    lines[count] = line;
    return count + 1;
}

size_t wrap_tail(const char *text, size_t len, size_t columns, wrap_line *lines, size_t capacity) {
    size_t count = 0, start = 0;
    if (columns == 0 || capacity == 0) return 0;
    while (start < len) {
        const cut found = cut_line(text, len, start, columns);
        const wrap_line line = {start, found.end - start};
        count = keep(lines, count, capacity, line);
        start = found.next;
    }
    return count;
}
