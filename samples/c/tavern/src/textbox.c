#include "textbox.h"

#include <string.h>

#include "utf8.h"

void textbox_open(textbox *box) {
    box->len = 0;
    box->open = 1;
}

void textbox_close(textbox *box) {
    box->len = 0;
    box->open = 0;
}

void textbox_type(textbox *box, const char *more) {
    const size_t len = strlen(more);
    size_t at = 0;
    while (at < len) {
        const size_t size = utf8_first(more + at, len - at, NULL);
        if (box->len + size > TEXTBOX_BYTES) return;
        if ((unsigned char)more[at] >= ' ') {
            memcpy(box->text + box->len, more + at, size);
            box->len += size;
        }
        at += size;
    }
}

void textbox_erase(textbox *box) {
    box->len -= utf8_last(box->text, box->len);
}
