#include "buffer.hpp"

#include "core.hpp"
#include "vtables.hpp"

#include <cstring>

namespace xlm {

namespace {

HostBuffer & context_of(ggml_backend_buffer_t buffer) {
    return *static_cast<HostBuffer *>(buffer->context);
}

bool is_compute(ggml_backend_buffer_t buffer) {
    return buffer->usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE;
}

void release_memory(HostBuffer & buffer) {
    if (buffer.pinned)
        ggml_backend_buffer_free(buffer.pinned);
    else
        ggml_aligned_free(buffer.base, buffer.bytes);
}

bool take_pinned(HostBuffer & buffer, size_t bytes) {
    const ggml_backend_buffer_type_t type = core().inner.host_buffer_type();
    if (!type || bytes > ggml_backend_buft_get_max_size(type)) return false;
    try {
        buffer.pinned = ggml_backend_buft_alloc_buffer(type, bytes);
    } catch (...) {
        return false;
    }
    if (!buffer.pinned) return false;
    buffer.base = static_cast<char *>(ggml_backend_buffer_get_base(buffer.pinned));
    return buffer.base != nullptr;
}

bool take_memory(HostBuffer & buffer, size_t bytes) {
    buffer.bytes = bytes;
    if (take_pinned(buffer, bytes)) return true;
    core().stats.pageable_host_bytes += bytes; // slower uploads, nothing worse
    buffer.base = static_cast<char *>(ggml_aligned_malloc(bytes));
    return buffer.base != nullptr;
}

void free_buffer(ggml_backend_buffer_t handle) {
    HostBuffer * buffer = &context_of(handle);
    core().forget_buffer(buffer);
    release_memory(*buffer);
    delete buffer;
}

void * get_base(ggml_backend_buffer_t handle) {
    return context_of(handle).base;
}

ggml_status init_tensor(ggml_backend_buffer_t handle, ggml_tensor * tensor) {
    if (tensor->view_src || is_compute(handle)) return GGML_STATUS_SUCCESS;
    try {
        core().registry.add_tensor(&context_of(handle), tensor);
    } catch (...) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

void wrote(ggml_backend_buffer_t handle, const ggml_tensor * tensor, size_t offset, size_t bytes) {
    if (!is_compute(handle)) core().registry.host_wrote(&context_of(handle), tensor, offset, bytes);
}

void memset_tensor(ggml_backend_buffer_t handle, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    std::memset(static_cast<char *>(tensor->data) + offset, value, size);
    wrote(handle, tensor, offset, size);
}

void set_tensor(ggml_backend_buffer_t handle, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    std::memcpy(static_cast<char *>(tensor->data) + offset, data, size);
    wrote(handle, tensor, offset, size);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const char *>(tensor->data) + offset, size);
}

bool cpy_tensor(ggml_backend_buffer_t handle, const ggml_tensor * source, ggml_tensor * target) {
    const ggml_backend_buffer_t from = source->view_src ? source->view_src->buffer : source->buffer;
    if (!ggml_backend_buffer_is_host(from)) return false;
    std::memcpy(target->data, source->data, ggml_nbytes(source));
    wrote(handle, target, 0, ggml_nbytes(target));
    return true;
}

void clear(ggml_backend_buffer_t handle, uint8_t value) {
    std::memset(context_of(handle).base, value, context_of(handle).bytes);
    if (!is_compute(handle)) core().registry.host_cleared(&context_of(handle));
}

constexpr ggml_backend_buffer_i kInterface = {
    /* .free_buffer   = */ free_buffer,
    /* .get_base      = */ get_base,
    /* .init_tensor   = */ init_tensor,
    /* .memset_tensor = */ memset_tensor,
    /* .set_tensor    = */ set_tensor,
    /* .get_tensor    = */ get_tensor,
    /* .set_tensor_2d = */ nullptr, // ggml falls back to set_tensor row by row
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ cpy_tensor,
    /* .clear         = */ clear,
    /* .reset         = */ nullptr,
};

} // namespace

ggml_backend_buffer_t alloc_host_buffer(ggml_backend_buffer_type_t type, size_t bytes, bool weights_type) {
    struct Delete {
        void operator()(HostBuffer * buffer) const {
            if (buffer->base) release_memory(*buffer);
            delete buffer;
        }
    };
    try {
        std::unique_ptr<HostBuffer, Delete> buffer(new HostBuffer);
        if (!take_memory(*buffer, bytes)) return nullptr;
        buffer->weights_type = weights_type;
        // ggml frees this struct with its own runtime, so ggml allocates it. Whole before others can find it.
        ggml_backend_buffer_t handle = ggml_backend_buffer_init(type, kInterface, buffer.get(), bytes);
        buffer->handle = handle;
        try {
            core().registry.add_buffer(buffer.get());
        } catch (...) {
            buffer.release();
            ggml_backend_buffer_free(handle);
            throw;
        }
        return buffer.release()->handle;
    } catch (...) {
        return nullptr;
    }
}

HostBuffer * host_buffer_of(ggml_backend_buffer_t buffer) {
    return buffer && buffer->iface.get_base == get_base ? &context_of(buffer) : nullptr;
}

} // namespace xlm
