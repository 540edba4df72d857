// The raw device under XLM0, for comparisons: stock llama.cpp on it, its counters, its copies.
#pragma once

#include "options.hpp"

#include "ggml-backend.h"

#include <memory>

namespace kit {

struct FreeMemory {
    uint64_t free_bytes = 0, total_bytes = 0;
};

class InnerDevice {
public:
    // Loads the backend library privately. Throws std::runtime_error with the reason.
    // The virtual GPU is configured first: its memory, and as many compute threads as the CPU path has,
    // because ggml-cpu's flash attention splits a long KV by threads.
    explicit InnerDevice(const Options & options);

    ggml_backend_dev_t get() const { return device_; }
    FreeMemory memory() const; // cudaMemGetInfo on CUDA, exact on the virtual GPU
    // True when `bytes` can be allocated right now; frees them again.
    bool can_allocate(uint64_t bytes) const;
    bool is_virtual() const { return virtual_; }

private:
    void configure_virtual(const Options & options) const;

    void * library_ = nullptr; // stays loaded: drivers do not survive being unloaded
    ggml_backend_dev_t device_ = nullptr;
    bool virtual_ = false;
};

struct BackendDelete {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
using BackendPtr = std::unique_ptr<ggml_backend, BackendDelete>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, BackendDelete>;

} // namespace kit
