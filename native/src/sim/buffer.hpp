// Buffers in device memory.
#pragma once

#include "sim_device.hpp"

#include <condition_variable>
#include <memory>
#include <vector>

namespace xlm::sim {

// Context of a device buffer. Knows how much accepted work still touches it: freeing
// device memory under running work is a bug on a real card, so it is counted here
// (n_frees_in_use), and made harmless by waiting.
class DeviceBuffer {
public:
    explicit DeviceBuffer(void * base_) : base(base_) {}
    void acquire();
    void release();
    // Modelled mode: work on it ends at that time.
    void use_until(ns_t end_ns);
    bool in_use();
    void wait_unused();

    void * const base;

private:
    std::mutex mutex_;
    std::condition_variable unused_;
    uint32_t n_uses_ = 0;
    ns_t busy_until_ns_ = 0;
};

// Holds buffers in use while a queued command lives.
class BufferUses {
public:
    void add(DeviceBuffer * buffer);
    void until(ns_t end_ns);
    BufferUses() = default;
    ~BufferUses();
    BufferUses(const BufferUses &) = delete;
    BufferUses & operator=(const BufferUses &) = delete;

private:
    std::vector<DeviceBuffer *> buffers_;
};

// The device buffer a tensor lies in; nullptr for host memory.
DeviceBuffer * device_buffer_of(const ggml_tensor & tensor);

ggml_backend_buffer_t alloc_device_buffer(ggml_backend_buffer_type_t type, size_t bytes);

} // namespace xlm::sim
