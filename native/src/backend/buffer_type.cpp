// Both buffer types are plain host memory; they differ in name, so that
// weights can be told apart while a model loads.
#include "buffer.hpp"
#include "core.hpp"
#include "vtables.hpp"

namespace xlm {

namespace {

constexpr size_t kAlignment = 64; // a cache line; more than any CPU kernel asks for

const char * device_type_name(ggml_backend_buffer_type_t) {
    return "XLM0";
}
const char * weights_type_name(ggml_backend_buffer_type_t) {
    return "XLM_HOST";
}
size_t alignment(ggml_backend_buffer_type_t) {
    return kAlignment;
}
bool is_host(ggml_backend_buffer_type_t) {
    return true;
}

// Pinned memory comes in limited portions; llama.cpp splits weights accordingly.
size_t weights_max_size(ggml_backend_buffer_type_t) {
    const ggml_backend_buffer_type_t pinned = core().inner.host_buffer_type();
    return pinned ? ggml_backend_buft_get_max_size(pinned) : SIZE_MAX;
}

ggml_backend_buffer_t alloc(ggml_backend_buffer_type_t type, size_t size) {
    return alloc_host_buffer(type, size, type == weights_buffer_type());
}

} // namespace

ggml_backend_buffer_type_t device_buffer_type() {
    static ggml_backend_buffer_type type = {
        {
            /* .get_name       = */ device_type_name,
            /* .alloc_buffer   = */ alloc,
            /* .get_alignment  = */ alignment,
            /* .get_max_size   = */ nullptr,
            /* .get_alloc_size = */ nullptr,
            /* .is_host        = */ is_host,
        },
        device_handle(),
        nullptr,
    };
    return &type;
}

ggml_backend_buffer_type_t weights_buffer_type() {
    static ggml_backend_buffer_type type = {
        {
            /* .get_name       = */ weights_type_name,
            /* .alloc_buffer   = */ alloc,
            /* .get_alignment  = */ alignment,
            /* .get_max_size   = */ weights_max_size,
            /* .get_alloc_size = */ nullptr,
            /* .is_host        = */ is_host,
        },
        device_handle(),
        nullptr,
    };
    return &type;
}

} // namespace xlm
