// One serial engine of the device as a virtual timeline.
#pragma once

#include "clock.hpp"

#include <deque>

namespace xlm::sim {

struct Slot {
    ns_t start_ns;
    ns_t end_ns;
    ns_t duration_ns() const { return end_ns - start_ns; }
};

// The busy times of one engine. Work gets the first gap that is long enough
// after it is ready: work submitted later but ready earlier is not held up by
// work that still waits for something else. A slot never moves once given.
// Pure: `now` is an argument, nothing here reads a clock. Not thread-safe.
class Timeline {
public:
    // First fit for `duration_ns` not before max(now, ready); takes it.
    Slot reserve(ns_t now, ns_t ready, ns_t duration_ns);
    // The same without taking it.
    Slot probe(ns_t now, ns_t ready, ns_t duration_ns) const;
    // Busy nanoseconds inside [from, to).
    ns_t busy_between(ns_t from, ns_t to) const;
    // Busy nanoseconds since the beginning, up to t (t not before the last reserve's now).
    ns_t busy_before(ns_t t) const;
    // Latest end given so far; 0 when nothing was reserved.
    ns_t horizon_ns() const { return horizon_ns_; }

private:
    void retire(ns_t now);
    void insert(Slot slot);

    std::deque<Slot> slots_; // ascending, disjoint, all end after the last `now`
    ns_t retired_busy_ns_ = 0;
    ns_t horizon_ns_ = 0;
};

} // namespace xlm::sim
