// ggml_backend_reg: one device.
#include "vtables.hpp"

#include <cstring>

namespace xlm {

namespace {

const char * get_name(ggml_backend_reg_t) {
    return "XLM";
}
size_t get_device_count(ggml_backend_reg_t) {
    return 1;
}
ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t index) {
    return index == 0 ? device_handle() : nullptr;
}

void * get_proc_address(ggml_backend_reg_t, const char * name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void *>(set_backend_threads);
    return nullptr;
}

constexpr ggml_backend_reg_i kInterface = {
    /* .get_name         = */ get_name,
    /* .get_device_count = */ get_device_count,
    /* .get_device       = */ get_device,
    /* .get_proc_address = */ get_proc_address,
};

} // namespace

ggml_backend_reg_t registry_handle() {
    static ggml_backend_reg registry = {GGML_BACKEND_API_VERSION, kInterface, nullptr};
    return &registry;
}

} // namespace xlm
