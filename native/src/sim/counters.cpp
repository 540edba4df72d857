#include "counters.hpp"

namespace xlm::sim {

using Lock = std::lock_guard<std::mutex>;

void Counters::graph(uint64_t n_ops) {
    const Lock lock(mutex_);
    totals_.n_graphs++;
    totals_.n_ops += n_ops;
}

void Counters::compute(ns_t duration_ns) {
    const Lock lock(mutex_);
    totals_.compute_ns += static_cast<uint64_t>(duration_ns);
}

void Counters::copy(Direction direction, uint64_t bytes, ns_t duration_ns) {
    const Lock lock(mutex_);
    const bool up = direction == Direction::to_device;
    (up ? totals_.n_h2d : totals_.n_d2h) += 1;
    (up ? totals_.h2d_bytes : totals_.d2h_bytes) += bytes;
    (up ? totals_.h2d_ns : totals_.d2h_ns) += static_cast<uint64_t>(duration_ns);
}

void Counters::host_sync(ns_t wait_ns) {
    const Lock lock(mutex_);
    totals_.n_host_syncs++;
    totals_.host_sync_wait_ns += static_cast<uint64_t>(wait_ns);
}

void Counters::graph_failed() {
    const Lock lock(mutex_);
    totals_.n_graphs_failed++;
}

void Counters::dropped() {
    const Lock lock(mutex_);
    totals_.n_dropped++;
}

void Counters::freed_in_use() {
    const Lock lock(mutex_);
    totals_.n_frees_in_use++;
}

Totals Counters::totals() const {
    const Lock lock(mutex_);
    return totals_;
}

void Counters::reset() {
    const Lock lock(mutex_);
    totals_ = {};
}

} // namespace xlm::sim
