/* Characters in UTF-8 text, of which any may be broken: a byte that starts no character counts as one, U+FFFD. */
#ifndef TAVERN_UTF8_H
#define TAVERN_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The bytes of the first character, 1 to 4; 0 where `len` is 0. `code` (or NULL) receives its number. */
size_t utf8_first(const char *text, size_t len, uint32_t *code);
/* The bytes of the last character; 0 where `len` is 0. */
size_t utf8_last(const char *text, size_t len);
/* How many characters there are. */
size_t utf8_count(const char *text, size_t len);

#endif
