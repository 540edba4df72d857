// What the device offers through ggml, and what merely using it costs.
#include "groups.hpp"

#include "ggml.h"

namespace kit {

namespace {

constexpr size_t kProbeBytes = 64u << 20;

Json capabilities(const ggml_backend_dev_props & props) {
    return {{"async", props.caps.async},
            {"events", props.caps.events},
            {"host_buffer", props.caps.host_buffer},
            {"buffer_from_host_ptr", props.caps.buffer_from_host_ptr}};
}

void note_device(Context & c, const InnerDevice & device) {
    ggml_backend_dev_props props = {};
    ggml_backend_dev_get_props(device.get(), &props);
    c.report.note("device", {{"name", props.name},
                             {"description", props.description},
                             {"memory_total_bytes", props.memory_total},
                             {"memory_free_bytes", props.memory_free},
                             {"capabilities", capabilities(props)},
                             {"ggml_version", ggml_version()},
                             {"ggml_commit", ggml_commit()},
                             {"xlm", xlm_device_build_info()}});
}

// A pinned buffer type that quietly hands out pageable memory says so in its buffers' name.
void note_pinned(Context & c, const InnerDevice & device) {
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(device.get());
    if (!type) {
        c.report.note("pinned host memory", {{"offered", false}});
        return;
    }
    const BufferPtr buffer(ggml_backend_buft_alloc_buffer(type, kProbeBytes));
    c.report.note("pinned host memory", {{"offered", true},
                                         {"buffer_type", ggml_backend_buft_name(type)},
                                         {"buffer", buffer ? ggml_backend_buffer_name(buffer.get()) : "refused"},
                                         {"max_buffer_bytes", ggml_backend_buft_get_max_size(type)}});
}

void note_context_cost(Context & c, const InnerDevice & device) {
    const FreeMemory before = device.memory(); // on CUDA this call itself makes the primary context
    const BackendPtr first(ggml_backend_dev_init(device.get(), nullptr));
    const FreeMemory one = device.memory();
    const BackendPtr second(ggml_backend_dev_init(device.get(), nullptr));
    const FreeMemory two = device.memory();
    if (!first || !second) throw std::runtime_error("the device refuses two backend instances");
    const auto taken = [](const FreeMemory & a, const FreeMemory & b) {
        return static_cast<int64_t>(a.free_bytes) - static_cast<int64_t>(b.free_bytes);
    };
    c.report.note("memory of backend instances",
                  {{"first_bytes", taken(before, one)}, {"second_bytes", taken(one, two)}});
}

void check_xlm_opens(Context & c, const InnerDevice & device) {
    const uint64_t free_before = device.memory().free_bytes;
    const Xlm xlm(c.options, 0);
    const xlm_memory memory = xlm.memory();
    const int64_t taken = static_cast<int64_t>(free_before) - static_cast<int64_t>(device.memory().free_bytes);
    c.report.require("XLM0 opens; a budget of zero holds no memory of ours", memory.used_bytes == 0,
                     {{"inner", xlm_device_inner_description()},
                      {"used_bytes", memory.used_bytes},
                      {"taken_by_driver_bytes", taken},
                      {"device_total_bytes", memory.device_total_bytes}});
}

} // namespace

void check_environment(Context & c) {
    const InnerDevice device(c.options);
    guarded(c, "device", [&] { note_device(c, device); });
    guarded(c, "pinned host memory", [&] { note_pinned(c, device); });
    guarded(c, "memory of backend instances", [&] { note_context_cost(c, device); });
    guarded(c, "XLM0 opens", [&] { check_xlm_opens(c, device); });
}

} // namespace kit
