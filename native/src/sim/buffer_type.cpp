#include "buffer.hpp"
#include "vtables.hpp"

namespace xlm::sim {

namespace {

// As the largest real backends ask for; ggml pads tensors to it.
constexpr size_t device_alignment_bytes = 128;

const char * device_get_name(ggml_backend_buffer_type_t) {
    return "SIM0";
}

size_t device_get_alignment(ggml_backend_buffer_type_t) {
    return device_alignment_bytes;
}

bool device_is_host(ggml_backend_buffer_type_t) {
    return false;
}

const char * host_get_name(ggml_backend_buffer_type_t) {
    return "SIM_HOST";
}

// "Pinned" memory: plain host memory here, its own type so that callers take the same paths as on a card.
ggml_backend_buffer_t host_alloc_buffer(ggml_backend_buffer_type_t type, size_t bytes) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), bytes);
    if (buffer) buffer->buft = type;
    return buffer;
}

size_t host_get_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

bool host_is_host(ggml_backend_buffer_type_t) {
    return true;
}

} // namespace

ggml_backend_buffer_type_t device_buffer_type() {
    static ggml_backend_buffer_type type = {
        /* .iface = */ {
            /* .get_name       = */ device_get_name,
            /* .alloc_buffer   = */ alloc_device_buffer,
            /* .get_alignment  = */ device_get_alignment,
            /* .get_max_size   = */ nullptr, // no limit but the cap
            /* .get_alloc_size = */ nullptr, // ggml_nbytes
            /* .is_host        = */ device_is_host,
        },
        /* .device  = */ device(),
        /* .context = */ nullptr,
    };
    return &type;
}

ggml_backend_buffer_type_t host_buffer_type() {
    static ggml_backend_buffer_type type = {
        /* .iface = */ {
            /* .get_name       = */ host_get_name,
            /* .alloc_buffer   = */ host_alloc_buffer,
            /* .get_alignment  = */ host_get_alignment,
            /* .get_max_size   = */ nullptr,
            /* .get_alloc_size = */ nullptr,
            /* .is_host        = */ host_is_host,
        },
        /* .device  = */ device(),
        /* .context = */ nullptr,
    };
    return &type;
}

} // namespace xlm::sim
