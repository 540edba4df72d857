// A ggml backend instance = one stream of the device.
#pragma once

#include "sim_device.hpp"

#include <utility>

namespace xlm::sim {

Stream & stream_of(ggml_backend_t backend);

// Runs a host wait and counts it. The CPU work before it is stretched here by what
// uploads at the same time would have cost it (cpu_slowdown_per_gb_s).
template <typename Wait>
void counted_host_sync(Wait && wait) {
    SimDevice & device = SimDevice::instance();
    const ns_t begin_ns = now_ns();
    const ns_t slowed_until_ns = begin_ns + device.take_contention_ns();
    std::forward<Wait>(wait)();
    host_wait_until_ns(slowed_until_ns);
    device.take_contention_ns(); // uploads while the CPU only waited slow nothing down
    device.counters.host_sync(now_ns() - begin_ns);
}

} // namespace xlm::sim
