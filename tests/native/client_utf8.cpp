// UTF-8 checks: every boundary of RFC 3629's table.
#include "check.hpp"
#include "client/utf8.hpp"

using namespace xlm::client;

TEST(counts_characters_not_bytes) {
    CHECK_EQ(utf8::count("").value(), 0u);
    CHECK_EQ(utf8::count("abc").value(), 3u);
    CHECK_EQ(utf8::count("é鍛🔨").value(), 3u);
    CHECK_EQ(utf8::count(std::string_view("a\0b", 3)).value(), 3u);
}

TEST(takes_the_first_and_last_of_each_length) {
    for (const char * good : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                              "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
        CHECK(utf8::valid(good));
}

TEST(refuses_what_is_none) {
    for (const char * bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
                             "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC2", "\xE2\x82",
                             "\xF0\x9F\x94", "\xC2\x41", "\xE2\x28\xA1", "ok\xF0\x9F\x94z"})
        CHECK(!utf8::valid(bad));
}

XLM_TEST_MAIN
