#include "trace.hpp"

#include "stats.hpp"

namespace xlm {

void Trace::start(uint32_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    on_.store(false, std::memory_order_relaxed);
    std::vector<xlm_trace_event>(capacity).swap(ring_);
    first_ = count_ = 0;
    lost_ = 0;
    on_.store(capacity > 0, std::memory_order_relaxed);
}

void Trace::add(const xlm_trace_event & event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ring_.empty()) return;
    ring_[(first_ + count_) % ring_.size()] = event;
    if (count_ < ring_.size()) {
        count_++;
        return;
    }
    first_ = (first_ + 1) % ring_.size();
    lost_++;
}

size_t Trace::take(xlm_trace_event * events, size_t most, uint64_t & lost) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t taken = 0;
    for (; taken < most && count_ > 0; taken++, count_--) {
        events[taken] = ring_[first_];
        first_ = (first_ + 1) % ring_.size();
    }
    lost = lost_;
    lost_ = 0;
    return taken;
}

TraceScope::TraceScope(Trace & trace, xlm_trace_kind kind, TraceLabel label) : trace_(trace.on() ? &trace : nullptr) {
    if (!trace_) return;
    event.struct_size = sizeof event;
    event.kind = kind;
    event.sublayer = label.sublayer;
    event.n_sublayers = label.n_sublayers;
    event.begin_ns = now_ns();
}

TraceScope::~TraceScope() {
    if (!trace_) return;
    event.end_ns = now_ns();
    trace_->add(event);
}

} // namespace xlm
