#include "sim_device.hpp"

#include "config.hpp"

#include <algorithm>
#include <cstdlib>

namespace xlm::sim {

namespace {

thread_local Slot last_slot{};

using Lock = std::lock_guard<std::mutex>;

LinkModel link_of(const xlm_sim_config & config, Direction direction) {
    // Downloads are small and few in inference; only the upload engine has a policy to choose.
    const bool up = direction == Direction::to_device;
    return {config.link_bytes_per_s, config.link_latency_ns, up ? config.arbitration : uint32_t{XLM_SIM_FIFO}};
}

} // namespace

SimDevice & SimDevice::instance() {
    static SimDevice * device = new SimDevice;
    return *device;
}

SimDevice::SimDevice() : config_(default_config()) {
    if (const char * settings = std::getenv("XLM_SIM")) {
        xlm_sim_config from_environment = config_;
        environment_error_ = parse_settings(settings, from_environment);
        if (environment_error_.empty()) config_ = from_environment;
    }
    memory.set_cap(config_.vram_bytes);
}

xlm_sim_config SimDevice::config() const {
    const Lock lock(config_mutex_);
    return config_;
}

std::string SimDevice::configure(const xlm_sim_config & config, bool & state_error) {
    state_error = false;
    if (std::string error = check_config(config); !error.empty()) return error;
    const Lock streams_lock(streams_mutex_);
    const Lock lock(config_mutex_);
    state_error = true;
    if (config.mode != config_.mode) {
        if (memory.use().used_bytes > 0) return "mode cannot change while device memory is allocated";
        if (!streams_.empty()) return "mode cannot change while backends of the device exist";
    }
    if (!memory.set_cap(config.vram_bytes)) return "vram_bytes is below what is allocated now";
    state_error = false;
    config_ = config;
    config_.struct_size = sizeof config_;
    return {};
}

ns_t SimDevice::submit_copy(Direction direction, ns_t ready, uint64_t bytes) {
    const LinkModel link = link_of(config(), direction);
    counters.copy(direction, bytes, link.duration_ns(bytes));
    const Lock lock(engines_mutex_);
    LinkEngine & engine = direction == Direction::to_device ? up_ : down_;
    last_slot = engine.reserve(link, now_ns(), ready, bytes);
    return last_slot.end_ns;
}

ns_t SimDevice::submit_compute(ns_t ready, ns_t duration_ns) {
    counters.compute(duration_ns);
    const Lock lock(engines_mutex_);
    last_slot = compute_.reserve(now_ns(), ready, duration_ns);
    return last_slot.end_ns;
}

Slot SimDevice::last_operation() const {
    return modelled() ? last_slot : Slot{};
}

ns_t SimDevice::take_contention_ns() {
    static thread_local ns_t seen_busy_ns = -1;
    const xlm_sim_config c = config();
    if (c.mode != XLM_SIM_MODELLED || c.cpu_slowdown_per_gb_s <= 0 || c.link_bytes_per_s <= 0) return 0;
    const Lock lock(engines_mutex_);
    const ns_t busy_ns = up_.busy_before(now_ns());
    const ns_t fresh_ns = seen_busy_ns < 0 ? 0 : std::max<ns_t>(0, busy_ns - seen_busy_ns);
    seen_busy_ns = busy_ns;
    return static_cast<ns_t>(static_cast<double>(fresh_ns) * c.cpu_slowdown_per_gb_s * c.link_bytes_per_s / 1e9);
}

double SimDevice::upload_bytes_per_s() const {
    const double rate = config().link_bytes_per_s;
    const ns_t now = now_ns();
    const Lock lock(engines_mutex_);
    return up_.busy_at(now) ? rate : 0.0;
}

void SimDevice::attach(Stream * stream) {
    const Lock lock(streams_mutex_);
    streams_.insert(stream);
}

void SimDevice::detach(Stream * stream) {
    const Lock lock(streams_mutex_);
    streams_.erase(stream);
}

void SimDevice::restore() {
    const Lock lock(streams_mutex_);
    if (loss.disarm() || !loss.lost()) return; // nothing was lost
    for (Stream * stream : streams_)
        stream->synchronize();
    memory.wipe();
    loss.restore();
}

std::unique_ptr<Stream> make_stream(SimDevice & device) {
    return device.modelled() ? make_modelled_stream(device) : make_exact_stream(device);
}

} // namespace xlm::sim
