#include "layout.h"

#include "font.h"

#define MARGIN 8

area layout_bar(void) {
    const area found = {16, 16, WINDOW_WIDTH - 32, 28};
    return found;
}

area layout_bubble(int npc) {
    const area found = {npc == 0 ? 24 : 496, 128, 440, 150};
    return found;
}

area layout_person(int npc) {
    const area found = {npc == 0 ? 200 : 672, 300, 80, 140};
    return found;
}

area layout_textbox(void) {
    const area found = {16, 486, WINDOW_WIDTH - 32, 40};
    return found;
}

area layout_scene(void) {
    const area found = {0, 104, WINDOW_WIDTH, 372};
    return found;
}

int layout_columns(area of) {
    return (of.w - 2 * MARGIN) / (FONT_ADVANCE * TEXT_SCALE);
}

int layout_lines(area of) {
    return (of.h - 2 * MARGIN) / (FONT_LINE * TEXT_SCALE);
}

int layout_share(uint64_t bytes, uint64_t total, int width) {
    double part;
    if (total == 0 || bytes == 0) return 0;
    part = bytes < total ? (double)bytes / (double)total : 1.0;
    return part * width < 1.0 ? 1 : (int)(part * width);
}
