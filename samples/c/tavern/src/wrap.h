/* Breaking text into lines. */
#ifndef TAVERN_WRAP_H
#define TAVERN_WRAP_H

#include <stddef.h>

typedef struct wrap_line {
    size_t start, len; /* bytes of the text, without the space or line end that the break took */
} wrap_line;

/* Breaks text into lines of at most `columns` characters: at line ends, else at the last space, else within a word.
 * Keeps the last `capacity` lines: of a long speech one reads the end. Returns how many those are. */
size_t wrap_tail(const char *text, size_t len, size_t columns, wrap_line *lines, size_t capacity);

#endif
