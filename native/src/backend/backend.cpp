// ggml_backend: one per llama context.
#include "executor.hpp"
#include "vtables.hpp"

#include <new>

namespace xlm {

namespace {

Executor & executor_of(ggml_backend_t backend) {
    return *static_cast<Executor *>(backend->context);
}

const char * get_name(ggml_backend_t) {
    return "XLM0";
}

void free_backend(ggml_backend_t backend) {
    delete static_cast<Executor *>(backend->context);
    delete backend;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    return executor_of(backend).run(graph);
}

ggml_guid * guid() {
    static ggml_guid value = {0x78, 0x6c, 0x6d, 0x30, 0x9b, 0x41, 0x4e, 0x0d,
                              0xa3, 0x55, 0x1f, 0xc2, 0x6a, 0x0e, 0xd8, 0x37};
    return &value;
}

constexpr ggml_backend_i kInterface = {
    /* .get_name            = */ get_name,
    /* .free                = */ free_backend,
    /* .set_tensor_async    = */ nullptr, // all memory is host memory, and a graph is done when it returns
    /* .get_tensor_async    = */ nullptr,
    /* .set_tensor_2d_async = */ nullptr,
    /* .get_tensor_2d_async = */ nullptr,
    /* .cpy_tensor_async    = */ nullptr,
    /* .synchronize         = */ nullptr,
    /* .graph_plan_create   = */ nullptr,
    /* .graph_plan_free     = */ nullptr,
    /* .graph_plan_update   = */ nullptr,
    /* .graph_plan_compute  = */ nullptr,
    /* .graph_compute       = */ graph_compute,
    /* .event_record        = */ nullptr,
    /* .event_wait          = */ nullptr,
    /* .graph_optimize      = */ nullptr, // the inner device's would move nodes across sub-layer borders
};

} // namespace

ggml_backend_t make_backend() {
    try {
        auto executor = std::make_unique<Executor>(core());
        auto * backend = new ggml_backend{guid(), kInterface, device_handle(), executor.get()};
        executor.release();
        return backend;
    } catch (...) {
        return nullptr;
    }
}

void set_backend_threads(ggml_backend_t backend, int n_threads) {
    executor_of(backend).set_threads(n_threads);
}

} // namespace xlm
