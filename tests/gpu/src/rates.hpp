// Copy rates of the raw device.
#pragma once

#include "inner_device.hpp"

#include <vector>

namespace kit {

// A host buffer of a kind and a device tensor of the same size.
class CopyPair {
public:
    // `pinned`: memory of the device's host buffer type; else plain pages. Throws std::runtime_error when refused.
    CopyPair(const InnerDevice & device, size_t bytes, bool pinned);

    // Bytes per second of `repeats` copies in flight, waited for once.
    double upload(size_t repeats);
    double download(size_t repeats);

private:
    template <typename Copy>
    double rate(size_t repeats, Copy && copy);

    size_t bytes_;
    BackendPtr backend_;
    BufferPtr device_buffer_, pinned_;
    std::vector<uint8_t> pages_;
    uint8_t * host_ = nullptr;
    std::unique_ptr<ggml_context, void (*)(ggml_context *)> context_;
    ggml_tensor * tensor_ = nullptr;
};

} // namespace kit
