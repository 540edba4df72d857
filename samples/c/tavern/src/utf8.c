#include "utf8.h"

#define REPLACEMENT 0xFFFDu

static size_t announced(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead < 0xE0) return 2;
    if (lead >= 0xE0 && lead < 0xF0) return 3;
    if (lead >= 0xF0 && lead < 0xF5) return 4;
    return 0;
}

/* Overlong forms, surrogates and what is beyond Unicode: right by their bits, and yet no characters. */
static int forbidden(uint32_t code, size_t size) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    return code < least[size] || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF;
}

size_t utf8_first(const char *text, size_t len, uint32_t *code) {
    uint32_t value = REPLACEMENT;
    size_t size = 0, i;
    if (len > 0) {
        const unsigned char lead = (unsigned char)text[0];
        size = announced(lead);
        value = size > 1 ? lead & (0x7Fu >> size) : lead;
        for (i = 1; i < size && i < len && ((unsigned char)text[i] & 0xC0) == 0x80; i++)
            value = value << 6 | ((unsigned char)text[i] & 0x3F);
        if (size == 0 || (size > 1 && i < size) || forbidden(value, size)) {
            value = REPLACEMENT;
            size = 1;
        }
    }
    if (code) *code = value;
    return size;
}

size_t utf8_last(const char *text, size_t len) {
    size_t size;
    for (size = len < 4 ? len : 4; size > 1; size--)
        if (utf8_first(text + len - size, size, NULL) == size) return size;
    return len > 0; /* ASCII, or a broken end: byte by byte */
}

size_t utf8_count(const char *text, size_t len) {
    size_t count = 0, at = 0;
    for (; at < len; count++)
        at += utf8_first(text + at, len - at, NULL);
    return count;
}
