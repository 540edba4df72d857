/* What the tavern does without SDL and without xlm. Ends with the number of what failed. */
#include <stdio.h>
#include <string.h>

#include "font.h"
#include "layout.h"
#include "level.h"
#include "npc.h"
#include "script.h"
#include "textbox.h"
#include "utf8.h"
#include "wrap.h"

static int failures;

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            failures++;                                                                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                           \
        }                                                                                                             \
    } while (0)

/* ---- utf8 ------------------------------------------------------------------------------------------------------ */

static void characters_are_counted_whole_and_broken_ones_byte_by_byte(void) {
    uint32_t code = 0;
    CHECK(utf8_count("", 0) == 0);
    CHECK(utf8_count("a\xC3\xB6\xE9\x8D\x9B\xF0\x9F\x94\xA8", 10) == 4);
    CHECK(utf8_first("\xF0\x9F\x94\xA8", 4, &code) == 4 && code == 0x1F528);
    CHECK(utf8_first("\xF0\x9F\x94", 3, &code) == 1 && code == 0xFFFD); /* cut off */
    CHECK(utf8_first("\x80", 1, &code) == 1 && code == 0xFFFD);
    CHECK(utf8_first("\xC0\xAF", 2, &code) == 1 && code == 0xFFFD);         /* overlong */
    CHECK(utf8_first("\xE0\x80\xAF", 3, &code) == 1 && code == 0xFFFD);     /* overlong */
    CHECK(utf8_first("\xED\xA0\x80", 3, &code) == 1 && code == 0xFFFD);     /* a surrogate */
    CHECK(utf8_first("\xF4\x90\x80\x80", 4, &code) == 1 && code == 0xFFFD); /* beyond Unicode */
    CHECK(utf8_last("a\xC3\xB6", 3) == 2 && utf8_last("a", 1) == 1 && utf8_last("", 0) == 0);
    CHECK(utf8_last("a\x80\x80", 3) == 1);
}

static void any_bytes_are_walked_to_their_end_both_ways(void) {
    char bytes[64];
    unsigned seed = 1, round, i;
    for (round = 0; round < 2000; round++) {
        size_t at = 0, left = sizeof bytes;
        for (i = 0; i < sizeof bytes; i++) {
            seed = seed * 1103515245u + 12345u;
            bytes[i] = (char)(seed >> 16);
        }
        while (at < sizeof bytes) {
            const size_t size = utf8_first(bytes + at, sizeof bytes - at, NULL);
            CHECK(size >= 1 && size <= 4 && at + size <= sizeof bytes);
            at += size;
        }
        while (left > 0) {
            const size_t size = utf8_last(bytes, left);
            CHECK(size >= 1 && size <= left);
            left -= size;
        }
    }
}

/* ---- wrap ------------------------------------------------------------------------------------------------------ */

/* The lines, joined with '|'. */
static const char *wrapped(const char *text, size_t columns, size_t capacity) {
    static char joined[512];
    wrap_line lines[16];
    const size_t count = wrap_tail(text, strlen(text), columns, lines, capacity);
    size_t i;
    joined[0] = '\0';
    for (i = 0; i < count; i++) {
        if (i) strcat(joined, "|");
        strncat(joined, text + lines[i].start, lines[i].len);
    }
    return joined;
}

static void lines_break_at_spaces_and_line_ends(void) {
    CHECK(strcmp(wrapped("", 8, 4), "") == 0);
    CHECK(strcmp(wrapped("one two three", 8, 4), "one two|three") == 0);
    CHECK(strcmp(wrapped("one two", 7, 4), "one two") == 0);
    CHECK(strcmp(wrapped("one two ", 7, 4), "one two") == 0);
    CHECK(strcmp(wrapped("one\ntwo\n\nthree", 20, 8), "one|two||three") == 0);
    CHECK(strcmp(wrapped("incomprehensible", 6, 8), "incomp|rehens|ible") == 0);
    CHECK(strcmp(wrapped("a incomprehensible", 6, 8), "a|incomp|rehens|ible") == 0);
}

static void columns_are_characters_and_the_end_is_kept(void) {
    CHECK(strcmp(wrapped("\xC3\xB6\xC3\xB6\xC3\xB6 \xC3\xBC", 3, 4), "\xC3\xB6\xC3\xB6\xC3\xB6|\xC3\xBC") == 0);
    CHECK(strcmp(wrapped("a b c d e", 1, 2), "d|e") == 0);
    CHECK(wrap_tail("abc", 3, 0, NULL, 4) == 0 && wrap_tail("abc", 3, 4, NULL, 0) == 0);
}

/* ---- textbox --------------------------------------------------------------------------------------------------- */

static void a_textbox_holds_whole_characters(void) {
    textbox box;
    int i;
    memset(&box, 0, sizeof box);
    textbox_open(&box);
    textbox_type(&box, "a\xC3\xB6\n\x1B");
    CHECK(box.len == 3 && memcmp(box.text, "a\xC3\xB6", 3) == 0);
    textbox_erase(&box);
    CHECK(box.len == 1);
    textbox_erase(&box);
    textbox_erase(&box);
    CHECK(box.len == 0);
    for (i = 0; i < TEXTBOX_BYTES; i++)
        textbox_type(&box, "\xE9\x8D\x9B");
    CHECK(box.len == TEXTBOX_BYTES / 3 * 3);
    textbox_close(&box);
    CHECK(box.len == 0 && !box.open);
}

/* ---- font ------------------------------------------------------------------------------------------------------ */

static int dots(uint32_t code) {
    unsigned char rows[FONT_ROWS];
    int row, column, count = 0;
    font_glyph(code, rows);
    for (row = 0; row < FONT_ROWS; row++) {
        CHECK(rows[row] < 1 << FONT_COLUMNS);
        for (column = 0; column < FONT_COLUMNS; column++)
            count += rows[row] >> column & 1;
    }
    return count;
}

static void every_character_has_a_picture_and_no_two_letters_the_same(void) {
    unsigned char one[FONT_ROWS], other[FONT_ROWS];
    uint32_t a, b;
    CHECK(dots(' ') == 0 && dots(0xA0) == 0);
    for (a = 0x21; a < 0x7F; a++)
        CHECK(dots(a) > 0);
    for (a = 0; a < 0x3000; a++)
        dots(a);
    for (a = 0x21; a < 0x7F; a++)
        for (b = a + 1; b < 0x7F; b++) {
            font_glyph(a, one);
            font_glyph(b, other);
            CHECK(memcmp(one, other, sizeof one) != 0);
        }
    CHECK(dots(0xF6) == dots('o') + 2); /* its two dots */
    CHECK(dots(0x2019) == dots('\'') && dots(0x9D5B) == dots(0xFFFD));
}

/* ---- layout ---------------------------------------------------------------------------------------------------- */

static int inside(area what, area of) {
    return what.x >= of.x && what.y >= of.y && what.x + what.w <= of.x + of.w && what.y + what.h <= of.y + of.h;
}

static int apart(area a, area b) {
    return a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
}

static void everything_is_in_the_window_and_nothing_covers_words(void) {
    const area all = {0, 0, WINDOW_WIDTH, WINDOW_HEIGHT};
    const area parts[] = {layout_bar(), layout_bubble(0), layout_bubble(1), layout_person(0), layout_person(1),
                          layout_textbox()};
    size_t i, j;
    for (i = 0; i < sizeof parts / sizeof *parts; i++) {
        CHECK(inside(parts[i], all));
        for (j = 0; j < i; j++)
            CHECK(apart(parts[i], parts[j]));
    }
    CHECK(layout_columns(layout_bubble(0)) >= 30 && layout_lines(layout_bubble(0)) >= 5);
}

static void shares_stay_within_the_bar(void) {
    CHECK(layout_share(0, 100, 50) == 0 && layout_share(5, 0, 50) == 0);
    CHECK(layout_share(50, 100, 50) == 25 && layout_share(100, 100, 50) == 50);
    CHECK(layout_share(1, UINT64_MAX, 50) == 1 && layout_share(UINT64_MAX, 100, 50) == 50);
}

/* ---- level ----------------------------------------------------------------------------------------------------- */

static void load_all(level *at) {
    while (level_next(at) == LEVEL_DO_LOAD_PIECE)
        level_piece_loaded(at);
}

static void a_level_waits_for_its_room(void) {
    level at;
    memset(&at, 0, sizeof at);
    level_enter(&at, 2);
    CHECK(level_next(&at) == LEVEL_DO_ASK);
    level_asked(&at, 7);
    CHECK(level_next(&at) == LEVEL_DO_NOTHING);
    level_piece_loaded(&at); /* out of turn: changes nothing */
    level_answered(&at, 6, 1);
    CHECK(at.phase == LEVEL_WAITING && at.loaded == 0);
    level_answered(&at, 7, 1);
    load_all(&at);
    CHECK(at.phase == LEVEL_PLAYING && at.loaded == level_plans[2].pieces && at.loads == 1 && at.in_time == 1);
    level_answered(&at, 7, 1);
    CHECK(at.phase == LEVEL_PLAYING && at.in_time == 1);
}

static void a_level_is_loaded_whatever_the_model_does(void) {
    level at;
    memset(&at, 0, sizeof at);
    level_enter(&at, 0);
    level_asked(&at, 0); /* no broker */
    load_all(&at);
    CHECK(at.phase == LEVEL_PLAYING && at.loads == 1 && at.in_time == 0);
    level_enter(&at, 1);
    level_asked(&at, 9);
    level_answered(&at, 9, 0); /* refused, or late, or the connection was lost */
    load_all(&at);
    CHECK(at.phase == LEVEL_PLAYING && at.loads == 2 && at.in_time == 0);
}

static void a_change_of_level_in_the_middle_forgets_the_old_answer(void) {
    level at;
    memset(&at, 0, sizeof at);
    level_enter(&at, 0);
    level_asked(&at, 3);
    level_enter(&at, 1);
    level_asked(&at, 4);
    level_answered(&at, 3, 1);
    CHECK(at.phase == LEVEL_WAITING);
    CHECK(level_bytes(1) == (uint64_t)level_plans[1].pieces << 22);
}

/* ---- npc ------------------------------------------------------------------------------------------------------- */

static void an_npc_says_what_it_is_given(void) {
    static npc who;
    npc_asked(&who);
    CHECK(who.mood == NPC_THINKING && npc_busy(&who));
    npc_hears(&who, "Aye", 3);
    npc_hears(&who, ".", 1);
    CHECK(who.mood == NPC_SPEAKING && who.pieces == 2 && who.len == 4 && memcmp(who.words, "Aye.", 4) == 0);
    npc_done(&who);
    CHECK(!npc_busy(&who) && who.answers == 1);
    npc_asked(&who);
    CHECK(who.len == 0 && who.pieces == 0);
    npc_hears(&who, "Aye", 3);
    npc_failed(&who, "no broker");
    CHECK(who.failures == 1 && who.len == 15 && memcmp(who.words, "Aye (no broker)", 15) == 0);
    npc_forgot(&who, 1);
    CHECK(who.mood == NPC_LOST);
}

static void a_long_speech_keeps_its_end_in_whole_characters(void) {
    static npc who;
    static char flood[3 * NPC_WORDS];
    int i;
    for (i = 0; i < 3 * NPC_WORDS; i += 3)
        memcpy(flood + i, "\xE9\x8D\x9B", 3);
    memset(&who, 0, sizeof who);
    npc_asked(&who);
    npc_hears(&who, "x", 1);
    for (i = 0; i < 2000; i++)
        npc_hears(&who, "\xE9\x8D\x9B", 3);
    CHECK(who.len <= NPC_WORDS && who.len > NPC_WORDS - 3 && who.len % 3 == 0);
    npc_hears(&who, flood, sizeof flood);
    CHECK(who.len <= NPC_WORDS && who.len % 3 == 0 && utf8_count(who.words, who.len) == who.len / 3);
}

/* ---- script ---------------------------------------------------------------------------------------------------- */

static void scripts_are_read(void) {
    static script s;
    CHECK(script_read(&s, "# a comment\n\nkey 2\ntype H\xC3\xB6 there\nwait pieces 3\nwait ready\nframes 9\nquit") == 0);
    CHECK(s.count == 6);
    CHECK(s.steps[0].verb == SCRIPT_KEY && strcmp(s.steps[0].word, "2") == 0);
    CHECK(s.steps[1].verb == SCRIPT_TYPE && strcmp(s.steps[1].word, "H\xC3\xB6 there") == 0);
    CHECK(s.steps[2].until == UNTIL_PIECES && s.steps[2].number == 3);
    CHECK(s.steps[3].until == UNTIL_READY && s.steps[3].number == 1);
    CHECK(s.steps[4].number == 9 && s.steps[5].verb == SCRIPT_QUIT);
    s.at = 6;
    CHECK(script_now(&s) == NULL);
}

static void what_is_no_step_is_told_by_its_line(void) {
    static script s;
    static char many[8 * (SCRIPT_STEPS + 1) + 1];
    int i;
    CHECK(script_read(&s, "key 1\ndance\n") == 2);
    CHECK(script_read(&s, "key") == 1 && script_read(&s, "quit now") == 1);
    CHECK(script_read(&s, "wait forever") == 1 && script_read(&s, "wait pieces many") == 1);
    CHECK(script_read(&s, "frames 0") == 1 && script_read(&s, "frames -3") == 1);
    for (i = 0; i <= SCRIPT_STEPS; i++)
        strcat(many, "key 1\n");
    CHECK(script_read(&s, many) == SCRIPT_STEPS + 1);
    memset(many, 'x', SCRIPT_WORD + 1);
    many[SCRIPT_WORD + 1] = '\0';
    CHECK(script_read(&s, many) == 1);
}

int main(void) {
    characters_are_counted_whole_and_broken_ones_byte_by_byte();
    any_bytes_are_walked_to_their_end_both_ways();
    lines_break_at_spaces_and_line_ends();
    columns_are_characters_and_the_end_is_kept();
    a_textbox_holds_whole_characters();
    every_character_has_a_picture_and_no_two_letters_the_same();
    everything_is_in_the_window_and_nothing_covers_words();
    shares_stay_within_the_bar();
    a_level_waits_for_its_room();
    a_level_is_loaded_whatever_the_model_does();
    a_change_of_level_in_the_middle_forgets_the_old_answer();
    an_npc_says_what_it_is_given();
    a_long_speech_keeps_its_end_in_whole_characters();
    scripts_are_read();
    what_is_no_step_is_told_by_its_line();
    printf("tavern: %s\n", failures ? "some checks failed" : "all is well");
    return failures != 0;
}
