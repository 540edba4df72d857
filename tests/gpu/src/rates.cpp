#include "rates.hpp"

#include "ggml.h"

#include <stdexcept>

namespace kit {

CopyPair::CopyPair(const InnerDevice & device, size_t bytes, bool pinned)
    : bytes_(bytes), backend_(ggml_backend_dev_init(device.get(), nullptr)),
      device_buffer_(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device.get()), bytes)),
      context_(ggml_init({ggml_tensor_overhead() * 2, nullptr, true}), ggml_free) {
    ggml_backend_buffer_type_t host_type = pinned ? ggml_backend_dev_host_buffer_type(device.get()) : nullptr;
    if (pinned && !host_type) throw std::runtime_error("the device offers no pinned host memory");
    if (host_type) pinned_.reset(ggml_backend_buft_alloc_buffer(host_type, bytes));
    if (!backend_ || !device_buffer_ || (host_type && !pinned_))
        throw std::runtime_error("no memory for the copy test");
    if (!host_type) pages_.resize(bytes);
    host_ = host_type ? static_cast<uint8_t *>(ggml_backend_buffer_get_base(pinned_.get())) : pages_.data();
    std::fill(host_, host_ + bytes, uint8_t(1)); // every page exists before it is timed
    tensor_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I8, static_cast<int64_t>(bytes));
    if (ggml_backend_tensor_alloc(device_buffer_.get(), tensor_, ggml_backend_buffer_get_base(device_buffer_.get())) !=
        GGML_STATUS_SUCCESS)
        throw std::runtime_error("the device refused the copy test's tensor");
}

template <typename Copy>
double CopyPair::rate(size_t repeats, Copy && copy) {
    copy();
    ggml_backend_synchronize(backend_.get());
    const uint64_t begin = now_ns();
    for (size_t i = 0; i < repeats; i++)
        copy();
    ggml_backend_synchronize(backend_.get());
    return static_cast<double>(bytes_ * repeats) / (static_cast<double>(now_ns() - begin) / 1e9);
}

double CopyPair::upload(size_t repeats) {
    return rate(repeats, [this] { ggml_backend_tensor_set_async(backend_.get(), tensor_, host_, 0, bytes_); });
}

double CopyPair::download(size_t repeats) {
    return rate(repeats, [this] { ggml_backend_tensor_get_async(backend_.get(), tensor_, host_, 0, bytes_); });
}

} // namespace kit
