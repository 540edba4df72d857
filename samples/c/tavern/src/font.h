/* A bitmap font of 5 x 7 dots: ASCII, and Latin letters with their accents. */
#ifndef TAVERN_FONT_H
#define TAVERN_FONT_H

#include <stdint.h>

#define FONT_COLUMNS 5
#define FONT_ROWS 9 /* two for accents above the seven */
#define FONT_ADVANCE 6
#define FONT_LINE 11

/* A character's dots; bit 4 of a row is its leftmost. One that the font has not is a box. */
void font_glyph(uint32_t code, unsigned char rows[FONT_ROWS]);

#endif
