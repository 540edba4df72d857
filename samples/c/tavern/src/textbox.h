/* One line of typed text, in whole characters. */
#ifndef TAVERN_TEXTBOX_H
#define TAVERN_TEXTBOX_H

#include <stddef.h>

#define TEXTBOX_BYTES 400

typedef struct textbox {
    char text[TEXTBOX_BYTES];
    size_t len;
    int open; /* 1: keys go in here */
} textbox;

void textbox_open(textbox *box);
/* Closes it and forgets what was typed. */
void textbox_close(textbox *box);
/* Takes what fits of `more`, up to its final NUL; never half a character, and no control characters. */
void textbox_type(textbox *box, const char *more);
/* Removes the last character. */
void textbox_erase(textbox *box);

#endif
