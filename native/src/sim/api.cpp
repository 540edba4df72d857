// The exported symbols: ggml's entry point and the control API of xlm_sim.h.
#include "config.hpp"
#include "sim_device.hpp"
#include "vtables.hpp"

#include "ggml.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

using xlm::sim::SimDevice;

std::string & last_error() {
    static thread_local std::string message;
    return message;
}

xlm_status fail(xlm_status status, const std::string & message) {
    last_error() = message;
    return status;
}

// Nothing thrown may cross the C boundary.
template <typename Call>
xlm_status guarded(Call && call) {
    try {
        return call();
    } catch (...) {
        last_error() = "out of memory"; // short enough to need none
        return XLM_ERR_HOST_MEMORY;
    }
}

// First versions of the structs; later ones only append.
constexpr size_t config_v1_bytes = offsetof(xlm_sim_config, reserved1) + sizeof(uint32_t);
constexpr size_t counters_v1_bytes = offsetof(xlm_sim_counters, host_sync_wait_ns) + sizeof(uint64_t);

xlm_sim_counters read_counters() {
    SimDevice & device = SimDevice::instance();
    const xlm::sim::MemoryUse use = device.memory.use();
    const xlm::sim::Totals totals = device.counters.totals();
    xlm_sim_counters c{};
    c.lost = device.loss.lost() ? 1 : 0;
    c.used_bytes = use.used_bytes;
    c.peak_bytes = use.peak_bytes;
    c.vram_bytes = use.cap_bytes;
    c.n_alloc = use.n_alloc;
    c.n_alloc_failed = use.n_alloc_failed;
    c.n_graphs = totals.n_graphs;
    c.n_ops = totals.n_ops;
    c.compute_ns = totals.compute_ns;
    c.n_h2d = totals.n_h2d;
    c.h2d_bytes = totals.h2d_bytes;
    c.h2d_ns = totals.h2d_ns;
    c.n_d2h = totals.n_d2h;
    c.d2h_bytes = totals.d2h_bytes;
    c.d2h_ns = totals.d2h_ns;
    c.n_host_syncs = totals.n_host_syncs;
    c.host_sync_wait_ns = totals.host_sync_wait_ns;
    c.n_graphs_failed = totals.n_graphs_failed;
    c.n_dropped = totals.n_dropped;
    c.n_frees_in_use = totals.n_frees_in_use;
    c.foreign_bytes = use.foreign_bytes;
    c.n_losses = device.loss.losses();
    return c;
}

// The private vtable layouts are only right for the ggml this was built with.
std::string check_ggml() {
    const std::string running = std::string(ggml_version()) + " " + ggml_commit();
    if (running == XLM_GGML_BUILD_ID) return {};
    return "built for ggml " XLM_GGML_BUILD_ID ", but ggml " + running + " is loaded";
}

std::string check_environment() {
    const std::string & error = SimDevice::instance().environment_error();
    return error.empty() ? error : "environment variable XLM_SIM: " + error;
}

} // namespace

extern "C" {

void xlm_sim_default_config(xlm_sim_config * config) {
    if (config) *config = xlm::sim::default_config();
}

xlm_status xlm_sim_configure(const xlm_sim_config * config) {
    return guarded([&] {
        if (!config) return fail(XLM_ERR_INVALID_ARGUMENT, "config is NULL");
        if (config->struct_size < config_v1_bytes)
            return fail(XLM_ERR_INVALID_ARGUMENT, "config.struct_size is too small");
        xlm_sim_config full = xlm::sim::default_config();
        std::memcpy(&full, config, std::min<size_t>(config->struct_size, sizeof full));
        bool state_error = false;
        const std::string error = SimDevice::instance().configure(full, state_error);
        if (error.empty()) return xlm_status{XLM_OK};
        return fail(state_error ? XLM_ERR_STATE : XLM_ERR_INVALID_ARGUMENT, error);
    });
}

xlm_status xlm_sim_get_counters(xlm_sim_counters * counters) {
    return guarded([&] {
        if (!counters) return fail(XLM_ERR_INVALID_ARGUMENT, "counters is NULL");
        const uint32_t size = counters->struct_size;
        if (size < counters_v1_bytes) return fail(XLM_ERR_INVALID_ARGUMENT, "counters.struct_size is too small");
        const xlm_sim_counters now = read_counters();
        std::memcpy(counters, &now, std::min<size_t>(size, sizeof now));
        counters->struct_size = size;
        return xlm_status{XLM_OK};
    });
}

xlm_status xlm_sim_reset_counters(void) {
    return guarded([] {
        SimDevice::instance().counters.reset();
        SimDevice::instance().memory.reset_counters();
        return xlm_status{XLM_OK};
    });
}

xlm_status xlm_sim_fail_allocations(uint32_t skip, uint32_t n) {
    return guarded([&] {
        SimDevice::instance().memory.fail_allocations(skip, n);
        return xlm_status{XLM_OK};
    });
}

xlm_status xlm_sim_lose_device(uint32_t after_submissions) {
    return guarded([&] {
        SimDevice::instance().loss.arm(after_submissions);
        return xlm_status{XLM_OK};
    });
}

xlm_status xlm_sim_restore_device(void) {
    return guarded([] {
        SimDevice::instance().restore();
        return xlm_status{XLM_OK};
    });
}

xlm_status xlm_sim_last_operation(uint64_t * begin_ns, uint64_t * end_ns) {
    if (!begin_ns || !end_ns) return fail(XLM_ERR_INVALID_ARGUMENT, "begin_ns or end_ns is NULL");
    const xlm::sim::Slot slot = SimDevice::instance().last_operation();
    *begin_ns = static_cast<uint64_t>(slot.start_ns);
    *end_ns = static_cast<uint64_t>(slot.end_ns);
    return XLM_OK;
}

xlm_status xlm_sim_set_foreign_bytes(uint64_t bytes) {
    return guarded([&] {
        SimDevice::instance().memory.set_foreign(bytes);
        return xlm_status{XLM_OK};
    });
}

double xlm_sim_upload_bytes_per_s(void) {
    double rate = 0;
    guarded([&] {
        rate = SimDevice::instance().upload_bytes_per_s();
        return xlm_status{XLM_OK};
    });
    return rate;
}

void * xlm_sim_registry(void) {
    ggml_backend_reg_t registry = nullptr;
    guarded([&] {
        std::string error = check_ggml();
        if (error.empty()) error = check_environment();
        if (!error.empty()) {
            std::fprintf(stderr, "ggml-xlm-sim: %s\n", error.c_str());
            return fail(XLM_ERR_INVALID_ARGUMENT, error);
        }
        registry = xlm::sim::registry();
        return xlm_status{XLM_OK};
    });
    return registry;
}

const char * xlm_sim_last_error(void) {
    return last_error().c_str();
}

XLM_DEVICE_API ggml_backend_reg_t ggml_backend_init(void) {
    return static_cast<ggml_backend_reg_t>(xlm_sim_registry());
}

} // extern "C"
