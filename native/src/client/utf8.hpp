// UTF-8 as RFC 3629 has it: no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace xlm::client::utf8 {

/// Length in bytes of the character at the front of `text`; 0 where there is none or it is broken.
inline std::size_t character(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
    if (text.empty()) return 0;
    const std::uint8_t first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; i++)
        if ((byte(i) & 0xC0) != 0x80) return 0;
    const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    const bool too_high = first == 0xF4 && byte(1) > 0x8F;
    return overlong || surrogate || too_high ? 0 : length;
}

/// How many characters `text` has; nothing where it is no UTF-8.
inline std::optional<std::size_t> count(std::string_view text) noexcept {
    std::size_t characters = 0;
    while (!text.empty()) {
        const std::size_t length = character(text);
        if (length == 0) return std::nullopt;
        text.remove_prefix(length);
        characters++;
    }
    return characters;
}

inline bool valid(std::string_view text) noexcept {
    return count(text).has_value();
}

} // namespace xlm::client::utf8
