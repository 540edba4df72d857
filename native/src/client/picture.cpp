#include "picture.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "errors.hpp"

namespace xlm::client {

namespace {

struct Format {
    xlm_image_format format;
    std::string_view name;
    std::uint32_t pixel_bytes;
};
constexpr Format formats[] = {
    {XLM_IMAGE_ENCODED, "encoded", 0}, {XLM_IMAGE_RGBA8, "rgba8", 4}, {XLM_IMAGE_RGBX8, "rgbx8", 4},
    {XLM_IMAGE_BGRA8, "bgra8", 4},     {XLM_IMAGE_BGRX8, "bgrx8", 4}, {XLM_IMAGE_RGB8, "rgb8", 3},
};

const Format * find(xlm_image_format format) noexcept {
    for (const Format & known : formats)
        if (known.format == format) return &known;
    return nullptr;
}

bool is_lent(const xlm_image & image) noexcept {
    return image.lent != 0 || image.release != nullptr;
}

void lend(const xlm_image & image, Picture & out, std::size_t row_step, std::size_t bytes) noexcept {
    out.lent = static_cast<const char *>(image.data);
    out.row_step = row_step;
    out.lent_bytes = bytes;
    out.release = image.release;
    out.release_user_data = image.release_user_data;
}

void take_encoded(const xlm_image & image, Picture & out) {
    if (image.size_bytes == 0) throw Failed(XLM_ERROR_IMAGE_EMPTY, "the image has no bytes");
    if (image.width || image.height || image.stride_bytes || image.bottom_up)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "an encoded image tells its size itself");
    if (is_lent(image)) return lend(image, out, image.size_bytes, image.size_bytes);
    out.copy.assign(static_cast<const char *>(image.data), image.size_bytes);
}

void check_size(const xlm_image & image) {
    if (image.width == 0 || image.height == 0) throw Failed(XLM_ERROR_IMAGE_EMPTY, "the image has no pixels");
    const std::uint64_t pixels = std::uint64_t(image.width) * image.height;
    if (image.width > max_side || image.height > max_side || pixels > max_pixels)
        throw Failed(XLM_ERROR_IMAGE_TOO_LARGE, "the image has more than 16,384 pixels a side or 40 million in all");
}

/// Without the padding of rows: less to send, and equal pixels have one name.
void take_rows(const xlm_image & image, Picture & out) {
    check_size(image);
    const std::size_t row_bytes = std::size_t(image.width) * pixel_bytes(image.format);
    const std::size_t stride = image.stride_bytes ? image.stride_bytes : row_bytes;
    if (stride < row_bytes || stride > max_image_bytes)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "stride_bytes is less than a row of pixels, or not a stride");
    if (image.size_bytes < stride * (image.height - 1) + row_bytes)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "size_bytes is less than the rows of the image");
    if (is_lent(image)) return lend(image, out, stride, row_bytes * image.height);
    const char * row = static_cast<const char *>(image.data);
    if (stride == row_bytes) {
        out.copy.assign(row, row_bytes * image.height);
        return;
    }
    out.copy.resize(row_bytes * image.height);
    for (std::uint32_t y = 0; y < image.height; y++)
        std::memcpy(out.copy.data() + y * row_bytes, row + y * stride, row_bytes);
}

} // namespace

std::uint64_t Picture::stride() const noexcept {
    return std::uint64_t(width) * pixel_bytes(format);
}

std::string_view Picture::piece(std::size_t offset, std::size_t max_bytes) const noexcept {
    if (lent == nullptr) return std::string_view(copy).substr(offset, max_bytes);
    const std::size_t row_bytes = format == XLM_IMAGE_ENCODED ? lent_bytes : stride();
    if (row_step == row_bytes) return std::string_view(lent, lent_bytes).substr(offset, max_bytes);
    const std::size_t within = offset % row_bytes;
    return {lent + offset / row_bytes * row_step + within, std::min(max_bytes, row_bytes - within)};
}

bool Picture::give_back() {
    const xlm_release_fn function = std::exchange(release, nullptr);
    const char * const data = std::exchange(lent, nullptr);
    lent_bytes = 0;
    if (function) function(release_user_data, data);
    return data && !function;
}

std::string_view encoding_name(xlm_image_format format) noexcept {
    const Format * known = find(format);
    return known ? known->name : std::string_view();
}

std::uint32_t pixel_bytes(xlm_image_format format) noexcept {
    const Format * known = find(format);
    return known ? known->pixel_bytes : 0;
}

void take_image(const xlm_image & image, Picture & out) {
    if (find(image.format) == nullptr) throw Failed(XLM_ERROR_IMAGE_UNSUPPORTED, "format is no xlm_image_format");
    if (image.data == nullptr && image.size_bytes > 0)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "an image has a size and no data");
    if (image.size_bytes > max_image_bytes) throw Failed(XLM_ERROR_IMAGE_TOO_LARGE, "the image is over 1 GiB");
    out.format = image.format;
    if (image.format == XLM_IMAGE_ENCODED) return take_encoded(image, out);
    out.width = image.width;
    out.height = image.height;
    out.bottom_up = image.bottom_up != 0;
    take_rows(image, out);
}

void add_key_header(const Picture & picture, Sha256 & hash) noexcept {
    char text[128];
    const std::string_view encoding = encoding_name(picture.format);
    const int length = std::snprintf(text, sizeof text, "xlm-image:%.*s:%u:%u:%llu:%d\n", int(encoding.size()),
                                     encoding.data(), picture.width, picture.height,
                                     static_cast<unsigned long long>(picture.stride()), picture.bottom_up ? 1 : 0);
    hash.add({text, static_cast<std::size_t>(length)});
}

} // namespace xlm::client
