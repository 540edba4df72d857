#include "vtables.hpp"

#include <cstring>

namespace xlm::sim {

namespace {

const char * registry_get_name(ggml_backend_reg_t) {
    return "SIM";
}

size_t registry_get_device_count(ggml_backend_reg_t) {
    return 1;
}

ggml_backend_dev_t registry_get_device(ggml_backend_reg_t, size_t index) {
    return index == 0 ? device() : nullptr;
}

void * registry_get_proc_address(ggml_backend_reg_t, const char * name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void *>(set_n_threads);
    return nullptr;
}

} // namespace

ggml_backend_reg_t registry() {
    static ggml_backend_reg object = {
        /* .api_version = */ GGML_BACKEND_API_VERSION,
        /* .iface = */
        {
            /* .get_name         = */ registry_get_name,
            /* .get_device_count = */ registry_get_device_count,
            /* .get_device       = */ registry_get_device,
            /* .get_proc_address = */ registry_get_proc_address,
        },
        /* .context = */ nullptr,
    };
    return &object;
}

} // namespace xlm::sim
