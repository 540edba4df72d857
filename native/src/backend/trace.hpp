// What happened when, for xlm_device_trace(). Off by default: then an event costs one relaxed load.
// Thread-safe. The newest events stay when the ring is full; how many were lost is told.
#pragma once

#include "xlm/xlm_device.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace xlm {

class Trace {
public:
    bool on() const { return on_.load(std::memory_order_relaxed); }

    // Forgets what was recorded; 0 turns recording off. May throw bad_alloc.
    void start(uint32_t capacity);
    void add(const xlm_trace_event & event);
    // Takes the oldest events out. `lost`: overwritten since the last call.
    size_t take(xlm_trace_event * events, size_t most, uint64_t & lost);

private:
    std::atomic<bool> on_{false};
    std::mutex mutex_;
    std::vector<xlm_trace_event> ring_;
    size_t first_ = 0, count_ = 0;
    uint64_t lost_ = 0;
};

// What a piece of work belongs to: sub-layers from `first` on, in the order of the graph.
struct TraceLabel {
    int32_t sublayer = -1;
    uint32_t n_sublayers = 0;
};

// An event that begins now and ends with the scope; the body may fill in the rest.
class TraceScope {
public:
    TraceScope(Trace & trace, xlm_trace_kind kind, TraceLabel label);
    ~TraceScope();
    TraceScope(const TraceScope &) = delete;
    TraceScope & operator=(const TraceScope &) = delete;

    xlm_trace_event event{};

private:
    Trace * trace_; // nullptr: off
};

} // namespace xlm
