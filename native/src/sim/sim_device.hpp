// All state of the virtual GPU in one object.
#pragma once

#include "counters.hpp"
#include "faults.hpp"
#include "link_engine.hpp"
#include "memory.hpp"
#include "stream.hpp"

#include <mutex>
#include <set>
#include <string>

namespace xlm::sim {

// Thread-safe.
class SimDevice {
public:
    // Never destroyed: worker threads may outlive static destructors at exit.
    static SimDevice & instance();

    xlm_sim_config config() const;
    bool modelled() const { return config().mode == XLM_SIM_MODELLED; }
    // Empty on success. Refused (state_error = true) while memory or streams are in use that it would break.
    std::string configure(const xlm_sim_config & config, bool & state_error);
    // What was wrong with XLM_SIM; empty if it was fine or not set.
    const std::string & environment_error() const { return environment_error_; }

    // Puts a copy on its link engine, counts it, returns when it ends.
    ns_t submit_copy(Direction direction, ns_t ready, uint64_t bytes);
    // Modelled mode: puts work on the compute engine, counts it, returns when it ends.
    ns_t submit_compute(ns_t ready, ns_t duration_ns);
    // The slot of the calling thread's last submission; zeros in exact mode.
    Slot last_operation() const;
    // Modelled mode: how much longer the calling thread's CPU work since its last call
    // would have taken because of uploads at the same time (cpu_slowdown_per_gb_s).
    ns_t take_contention_ns();
    // Mean upload rate while the link is busy: the configured one, or 0 when idle or unthrottled.
    double upload_bytes_per_s() const;

    void attach(Stream * stream);
    void detach(Stream * stream);
    // Waits for all accepted work, forgets the memory's contents, accepts work again.
    void restore();

    DeviceMemory memory;
    Counters counters;
    LossFault loss;
    std::mutex compute_mutex; // exact mode: one graph computes at a time, as on one card

private:
    SimDevice();

    mutable std::mutex config_mutex_;
    xlm_sim_config config_;
    std::string environment_error_;

    mutable std::mutex engines_mutex_;
    LinkEngine up_;
    LinkEngine down_;
    Timeline compute_;

    std::mutex streams_mutex_;
    std::set<Stream *> streams_;
};

} // namespace xlm::sim
