// Sentences.h - cuts an answer into sentences as it comes. No Unreal in here: compiled and tested by itself.
//
// The same rules as XlmSentences of bindings/unity; tests run both over one list. A sentence ends after . ! ? … and
// closing quotes and brackets, before white space and anything but a lower-case letter; not after abbreviations,
// initials and list numbers. It ends after 。！？ at once, and at a line break. White space around it is dropped.
// How the text is cut into pieces makes no difference, as long as each piece is whole characters.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace xlm {

class Sentences {
public:
    /// Takes the next piece (UTF-8); adds the sentences that are complete by now.
    void feed(std::string_view piece, std::vector<std::string> & sentences) {
        text_.append(piece);
        while (scanned_ < text_.size())
            look(sentences);
    }

    /// The answer is over: adds what is left, and starts anew.
    void finish(std::vector<std::string> & sentences) { cut(text_.size(), sentences); }

private:
    struct Character {
        char32_t code;
        std::size_t bytes;
    };

    // A wrong byte counts as a character of its own: nothing here reads past the end.
    static Character decode(std::string_view text) {
        const auto first = static_cast<unsigned char>(text[0]);
        const std::size_t bytes = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        if (first < 0x80 || first < 0xc2 || text.size() < bytes) return {first < 0x80 ? first : 0xfffdu, 1};
        char32_t code = first & (0xffu >> (bytes + 1));
        for (std::size_t i = 1; i < bytes; i++)
            code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
        return {code, bytes};
    }

    void look(std::vector<std::string> & sentences) {
        const Character c = decode(std::string_view(text_).substr(scanned_));
        if (c.code == '\n')
            cut(scanned_ + 1, sentences);
        else if (end_ == none)
            begin(c);
        else if (is_space(c.code))
            pass(c);
        else if (!spaced_ && (is_stop(c.code) || is_wide(c.code) || is_closer(c.code)))
            extend(c);
        else if ((spaced_ || wide_) && !is_lower(c.code) && !is_mid_sentence())
            cut(scanned_, sentences);
        else
            forget(c);
    }

    // The character may open an end of its own.
    void forget(Character c) {
        end_ = none;
        wide_ = spaced_ = false;
        begin(c);
    }

    void begin(Character c) {
        scanned_ += c.bytes;
        if (!is_stop(c.code) && !is_wide(c.code)) return;
        end_ = scanned_;
        wide_ = is_wide(c.code);
        spaced_ = false;
    }

    void extend(Character c) {
        end_ = scanned_ += c.bytes;
        wide_ = wide_ || is_wide(c.code);
    }

    void pass(Character c) {
        spaced_ = true;
        scanned_ += c.bytes;
    }

    void cut(std::size_t at, std::vector<std::string> & sentences) {
        const std::string_view sentence = trim(std::string_view(text_).substr(0, at));
        if (!sentence.empty()) sentences.emplace_back(sentence);
        text_.erase(0, at);
        scanned_ = 0;
        end_ = none;
        wide_ = spaced_ = false;
    }

    // Whether the full stop belongs to the word before it: "Dr.", "J.", "1."
    bool is_mid_sentence() const {
        const std::size_t stop = end_ - 1;
        if (text_[stop] != '.' || wide_) return false;
        const std::size_t start = word_start(stop);
        const std::string_view word = std::string_view(text_).substr(start, stop - start);
        if (word.size() == 1 && word != "I" && word[0] >= 'A' && word[0] <= 'Z') return true;
        if (is_number(word)) return trim(std::string_view(text_).substr(0, start)).empty();
        return is_abbreviation(word);
    }

    std::size_t word_start(std::size_t stop) const {
        std::size_t start = 0;
        for (std::size_t at = 0; at < stop;) {
            const Character c = decode(std::string_view(text_).substr(at));
            at += c.bytes;
            if (is_space(c.code) || is_opener(c.code)) start = at;
        }
        return std::min(start, stop);
    }

    static bool is_number(std::string_view word) {
        return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
    }

    static bool is_abbreviation(std::string_view word) {
        static constexpr std::array<std::string_view, 15> known = {
            "mr", "mrs", "ms", "dr", "st", "prof", "sr", "jr", "vs", "etc", "e.g", "i.e", "capt", "lt", "sgt"};
        std::string lower(word);
        for (char & c : lower)
            if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        return std::find(known.begin(), known.end(), lower) != known.end();
    }

    static std::string_view trim(std::string_view text) {
        while (!text.empty() && is_space(decode(text).code))
            text.remove_prefix(decode(text).bytes);
        std::size_t kept = 0;
        for (std::size_t at = 0; at < text.size();) {
            const Character c = decode(text.substr(at));
            at += c.bytes;
            if (!is_space(c.code)) kept = at;
        }
        return text.substr(0, kept);
    }

    static bool one_of(char32_t c, std::u32string_view set) { return set.find(c) != set.npos; }
    static bool is_space(char32_t c) { return one_of(c, U" \t\r\n\u00a0\u3000"); }
    static bool is_stop(char32_t c) { return one_of(c, U".!?\u2026"); }
    static bool is_wide(char32_t c) { return one_of(c, U"\u3002\uff01\uff1f"); }
    static bool is_closer(char32_t c) { return one_of(c, U"\"')]}*\u2019\u201d\u00bb\u300d\u300f\uff09"); }
    static bool is_opener(char32_t c) { return one_of(c, U"\"'([{*\u2018\u201c\u00ab\u300c\u300e\uff08"); }
    // Written out, so that C# has the same: Latin, Greek, Cyrillic.
    static bool is_lower(char32_t c) {
        return (c >= 'a' && c <= 'z') || (c >= 0xdf && c <= 0xff && c != 0xf7) || (c >= 0x3ac && c <= 0x3ce) ||
               (c >= 0x430 && c <= 0x45f);
    }

    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    std::string text_;        // from the begin of the sentence
    std::size_t scanned_ = 0; // where the next character to look at is
    std::size_t end_ = none;  // behind a possible end of the sentence
    bool wide_ = false;       // it was 。！？, which need no white space
    bool spaced_ = false;     // white space has been seen behind it
};

} // namespace xlm
