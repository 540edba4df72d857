// One direction of the link between host and device memory.
#pragma once

#include "timeline.hpp"

#include "xlm/xlm_sim.h"

#include <cstdint>

namespace xlm::sim {

constexpr uint64_t small_copy_bytes = 64 * 1024;  // SMALL_FIRST: at most this is "small"
constexpr uint64_t link_chunk_bytes = 256 * 1024; // CHUNKED: unit of fair sharing

struct LinkModel {
    double bytes_per_s = 0; // 0 = unthrottled: copies take no link time at all
    double latency_ns = 0;
    uint32_t arbitration = XLM_SIM_FIFO;

    ns_t duration_ns(uint64_t bytes) const;
};

// Decides when a copy ends, at the moment it is submitted.
//  FIFO         one after the other;
//  CHUNKED      fair sharing: a copy of k chunks waits for at most k chunks of other traffic;
//  SMALL_FIRST  small copies pass big ones. The big copy in flight keeps its end;
//               the link time taken from it is charged to the next big copy, so the
//               sum of all traffic never exceeds the link.
// Not thread-safe.
class LinkEngine {
public:
    Slot reserve(const LinkModel & model, ns_t now, ns_t ready, uint64_t bytes);
    // Link-busy nanoseconds up to t, small and big copies.
    ns_t busy_before(ns_t t) const { return big_.busy_before(t) + small_.busy_before(t); }
    bool busy_at(ns_t t) const { return big_.busy_between(t, t + 1) + small_.busy_between(t, t + 1) > 0; }

private:
    Slot reserve_chunked(const LinkModel & model, ns_t now, ns_t ready, uint64_t bytes);
    Slot reserve_small(ns_t now, ns_t ready, ns_t duration_ns);
    Slot reserve_big(ns_t now, ns_t ready, ns_t duration_ns);

    Timeline big_;
    Timeline small_;
    ns_t debt_ns_ = 0; // link time small copies took from big ones that had their end already
};

} // namespace xlm::sim
