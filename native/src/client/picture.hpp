// An image on its way to the broker: a copy of the game's, or its very bytes until it gets them back.
#pragma once

#include <array>
#include <memory_resource>
#include <string>
#include <string_view>

#include <xlm/xlm.h>

#include "sha256.hpp"

namespace xlm::client {

inline constexpr std::uint32_t max_images = 64;                      // of one say
inline constexpr std::uint32_t max_side = 16'384;                    // pixels
inline constexpr std::uint64_t max_pixels = 40'000'000;              // 8K is 33.2 million
inline constexpr std::size_t max_image_bytes = std::size_t(1) << 30; // copied at all; the broker takes far less
inline constexpr std::size_t image_chunk_bytes = std::size_t(256) * 1024;
inline constexpr std::uint32_t image_window = 4; // chunks under way without an answer

struct Picture {
    explicit Picture(std::pmr::memory_resource * memory) : copy(memory) {}

    xlm_image_format format = XLM_IMAGE_ENCODED;
    std::uint32_t width = 0, height = 0; // of raw pixels, whose rows have no padding here
    bool bottom_up = false;
    std::pmr::string copy;
    const char * lent = nullptr; // the game's, with `row_step` bytes from row to row; nullptr: copied
    std::size_t row_step = 0;
    std::size_t lent_bytes = 0; // without padding
    xlm_release_fn release = nullptr;
    void * release_user_data = nullptr;
    std::array<char, 64> key{}; // hexadecimal, once it is known

    std::string_view key_view() const noexcept { return {key.data(), key.size()}; }
    std::uint64_t stride() const noexcept;
    std::size_t size_bytes() const noexcept { return lent ? lent_bytes : copy.size(); }
    /// Up to `max_bytes` from `offset` on, rows without padding. At least one byte where there is one; a piece of a
    /// padded image ends with its row.
    std::string_view piece(std::size_t offset, std::size_t max_bytes) const noexcept;
    /// The game's bytes go back to it, once; nothing for a copy. Runs the game's code. True: it has none for this, and
    /// is to be told by an event.
    bool give_back();
};

/// As the wire spells it.
std::string_view encoding_name(xlm_image_format format) noexcept;
/// Bytes of a pixel; 0 of XLM_IMAGE_ENCODED, and of what is no format.
std::uint32_t pixel_bytes(xlm_image_format format) noexcept;
/// Copies an image, or borrows it where it has a `release`. Throws Failed: INVALID_ARGUMENT, IMAGE_EMPTY,
/// IMAGE_TOO_LARGE, IMAGE_UNSUPPORTED; then nothing was borrowed.
void take_image(const xlm_image & image, Picture & out);
/// Begins the hash that names it: what stands before the bytes.
void add_key_header(const Picture & picture, Sha256 & hash) noexcept;

} // namespace xlm::client
