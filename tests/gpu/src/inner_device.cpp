#include "inner_device.hpp"

#include "xlm/xlm_sim.h"

#include <dlfcn.h>

#include <array>
#include <stdexcept>

namespace kit {

namespace {

constexpr uint64_t kVirtualMemory = 1ull << 30;

template <typename Function>
Function symbol(void * library, const char * name) {
    return reinterpret_cast<Function>(dlsym(library, name));
}

ggml_backend_reg_t registry_of(void * library) {
    // The first is what loadable backends export; the others what backends linked into libggml export.
    for (const char * name : {"ggml_backend_init", "ggml_backend_cuda_reg", "ggml_backend_vk_reg"})
        if (auto call = symbol<ggml_backend_reg_t (*)()>(library, name)) return call();
    return nullptr;
}

} // namespace

InnerDevice::InnerDevice(const Options & options) : virtual_(options.device == "sim") {
    library_ = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error("cannot load " + options.library + ": " + dlerror());
    if (virtual_) configure_virtual(options);
    ggml_backend_reg_t registry = registry_of(library_);
    if (!registry || options.index >= ggml_backend_reg_dev_count(registry))
        throw std::runtime_error(options.library + " offers no device " + std::to_string(options.index));
    device_ = ggml_backend_reg_dev_get(registry, options.index);
}

void InnerDevice::configure_virtual(const Options & options) const {
    const auto defaults = symbol<void (*)(xlm_sim_config *)>(library_, "xlm_sim_default_config");
    const auto configure = symbol<xlm_status (*)(const xlm_sim_config *)>(library_, "xlm_sim_configure");
    if (!defaults || !configure) throw std::runtime_error(options.library + " is not the virtual GPU");
    xlm_sim_config config = {};
    config.struct_size = sizeof config;
    defaults(&config);
    config.vram_bytes = kVirtualMemory;
    config.n_threads = options.threads;
    if (configure(&config) != XLM_OK) throw std::runtime_error("the virtual GPU refused its configuration");
}

FreeMemory InnerDevice::memory() const {
    size_t free_bytes = 0, total_bytes = 0;
    ggml_backend_dev_memory(device_, &free_bytes, &total_bytes);
    return {free_bytes, total_bytes};
}

bool InnerDevice::can_allocate(uint64_t bytes) const {
    const BufferPtr buffer(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device_), bytes));
    return buffer != nullptr;
}

} // namespace kit
