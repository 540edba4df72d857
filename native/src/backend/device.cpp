// ggml_backend_device: XLM0 as llama.cpp sees it, a device whose memory is host memory.
#include "core.hpp"
#include "vtables.hpp"

#include "ggml-cpu.h"

namespace xlm {

namespace {

const char * get_name(ggml_backend_dev_t) {
    return "XLM0";
}
const char * get_description(ggml_backend_dev_t) {
    return core().inner.description().c_str();
}

// What llama.cpp may plan with is the budget; it decides nothing here, but is shown to people.
void get_memory(ggml_backend_dev_t, size_t * free_bytes, size_t * total_bytes) {
    const LedgerView view = core().ledger.view();
    *total_bytes = view.budget_bytes;
    *free_bytes = view.budget_bytes > view.used_bytes ? view.budget_bytes - view.used_bytes : 0;
}

enum ggml_backend_dev_type get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

void get_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    *props = {};
    props->name = get_name(device);
    props->description = get_description(device);
    get_memory(device, &props->memory_free, &props->memory_total);
    props->type = get_type(device);
}

ggml_backend_t init_backend(ggml_backend_dev_t, const char *) {
    return make_backend();
}
ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t) {
    return device_buffer_type();
}

ggml_backend_dev_t cpu_device() {
    static ggml_backend_dev_t device = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
    return device;
}

// The CPU runs whatever the inner device cannot, so its answer is the answer.
bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return ggml_backend_dev_supports_op(cpu_device(), op);
}

bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_is_host(type);
}

constexpr ggml_backend_device_i kInterface = {
    /* .get_name             = */ get_name,
    /* .get_description      = */ get_description,
    /* .get_memory           = */ get_memory,
    /* .get_type             = */ get_type,
    /* .get_props            = */ get_props,
    /* .init_backend         = */ init_backend,
    /* .get_buffer_type      = */ get_buffer_type,
    /* .get_host_buffer_type = */ nullptr, // equal to XLM_HOST, it would make llama.cpp replace the overrides
    /* .buffer_from_host_ptr = */ nullptr,
    /* .supports_op          = */ supports_op,
    /* .supports_buft        = */ supports_buft,
    /* .offload_op           = */ nullptr,
    /* .event_new            = */ nullptr,
    /* .event_free           = */ nullptr,
    /* .event_synchronize    = */ nullptr,
};

} // namespace

ggml_backend_dev_t device_handle() {
    static ggml_backend_device device = {kInterface, registry_handle(), nullptr};
    return &device;
}

} // namespace xlm
