#include "backend.hpp"

#include "buffer.hpp"
#include "vtables.hpp"

#include <new>

namespace xlm::sim {

namespace {

ggml_guid sim_guid = {0x78, 0x6c, 0x6d, 0x2d, 0x73, 0x69, 0x6d, 0x2d, 0x64, 0x65, 0x76, 0x69, 0x63, 0x65, 0x30, 0x31};

const char * backend_get_name(ggml_backend_t) {
    return "SIM0";
}

void backend_free(ggml_backend_t backend) {
    Stream * stream = &stream_of(backend);
    SimDevice::instance().detach(stream);
    stream->synchronize();
    delete stream;
    delete backend;
}

void backend_set_tensor_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset,
                              size_t bytes) {
    stream_of(backend).upload(*tensor, data, offset, bytes);
}

void backend_get_tensor_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset,
                              size_t bytes) {
    stream_of(backend).download(*tensor, data, offset, bytes);
}

// Ordered after earlier work of both streams, and before later work of both.
bool backend_cpy_tensor_async(ggml_backend_t backend_src, ggml_backend_t backend_dst, const ggml_tensor * src,
                              ggml_tensor * dst) {
    if (!is_sim_backend(backend_src) || !device_buffer_of(*src) || !device_buffer_of(*dst)) return false;
    Stream & from = stream_of(backend_src);
    Stream & to = stream_of(backend_dst);
    if (&from != &to) from.wait(to.record());
    from.copy(*src, *dst);
    if (&from != &to) to.wait(from.record());
    return true;
}

void backend_synchronize(ggml_backend_t backend) {
    counted_host_sync([&] { stream_of(backend).synchronize(); });
}

ggml_status backend_graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    SimDevice & device = SimDevice::instance();
    if (!device.loss.accept_graph()) {
        device.counters.graph_failed();
        return GGML_STATUS_FAILED;
    }
    return stream_of(backend).compute(*graph);
}

const ggml_backend_i backend_interface = {
    /* .get_name            = */ backend_get_name,
    /* .free                = */ backend_free,
    /* .set_tensor_async    = */ backend_set_tensor_async,
    /* .get_tensor_async    = */ backend_get_tensor_async,
    /* .set_tensor_2d_async = */ nullptr, // ggml loops over set_tensor_async
    /* .get_tensor_2d_async = */ nullptr, // ggml loops over get_tensor_async
    /* .cpy_tensor_async    = */ backend_cpy_tensor_async,
    /* .synchronize         = */ backend_synchronize,
    /* .graph_plan_create   = */ nullptr,
    /* .graph_plan_free     = */ nullptr,
    /* .graph_plan_update   = */ nullptr,
    /* .graph_plan_compute  = */ nullptr,
    /* .graph_compute       = */ backend_graph_compute,
    /* .event_record        = */ record_event,
    /* .event_wait          = */ wait_event,
    /* .graph_optimize      = */ nullptr,
};

} // namespace

Stream & stream_of(ggml_backend_t backend) {
    return *static_cast<Stream *>(backend->context);
}

bool is_sim_backend(ggml_backend_t backend) {
    return backend && ggml_guid_matches(backend->guid, &sim_guid);
}

void set_n_threads(ggml_backend_t backend, int n) {
    if (is_sim_backend(backend)) stream_of(backend).set_n_threads(n);
}

ggml_backend_t new_backend() try {
    SimDevice & state = SimDevice::instance();
    std::unique_ptr<Stream> stream = make_stream(state);
    if (!stream) return nullptr;
    auto * backend = new ggml_backend{&sim_guid, backend_interface, device(), stream.get()};
    state.attach(stream.get());
    stream.release();
    return backend;
} catch (...) {
    return nullptr;
}

} // namespace xlm::sim
