/* Where things are, in pixels of a window of fixed size. Knows no SDL. */
#ifndef TAVERN_LAYOUT_H
#define TAVERN_LAYOUT_H

#include <stdint.h>

#define WINDOW_WIDTH 960
#define WINDOW_HEIGHT 540
#define TEXT_SCALE 2

typedef struct area {
    int x, y, w, h;
} area;

area layout_bar(void);
area layout_bubble(int npc);
area layout_person(int npc);
area layout_textbox(void);
area layout_scene(void);

/* Characters a line of an area holds, and lines, with a margin all around. */
int layout_columns(area of);
int layout_lines(area of);

/* Pixels of `width` that stand for `bytes` of `total`: 0 to width, and at least 1 for any byte. A total of 0 is
 * an unknown one: nothing is drawn. */
int layout_share(uint64_t bytes, uint64_t total, int width);

#endif
