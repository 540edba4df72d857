// What the device did, added up. Thread-safe.
#pragma once

#include "clock.hpp"

#include <cstdint>
#include <mutex>

namespace xlm::sim {

struct Totals {
    uint64_t n_graphs = 0, n_ops = 0, compute_ns = 0;
    uint64_t n_h2d = 0, h2d_bytes = 0, h2d_ns = 0;
    uint64_t n_d2h = 0, d2h_bytes = 0, d2h_ns = 0;
    uint64_t n_host_syncs = 0, host_sync_wait_ns = 0;
    uint64_t n_graphs_failed = 0, n_dropped = 0, n_frees_in_use = 0;
};

enum class Direction { to_device, to_host };

class Counters {
public:
    void graph(uint64_t n_ops);
    void compute(ns_t duration_ns);
    void copy(Direction direction, uint64_t bytes, ns_t duration_ns);
    void host_sync(ns_t wait_ns);
    void graph_failed();
    void dropped();
    void freed_in_use();
    Totals totals() const;
    void reset();

private:
    mutable std::mutex mutex_;
    Totals totals_;
};

} // namespace xlm::sim
