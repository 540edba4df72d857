#include "timeline.hpp"

#include <algorithm>

namespace xlm::sim {

Slot Timeline::probe(ns_t now, ns_t ready, ns_t duration_ns) const {
    ns_t start = std::max(now, ready);
    for (const Slot & busy : slots_) {
        if (busy.end_ns <= start) continue;
        if (busy.start_ns - start >= duration_ns) break;
        start = busy.end_ns;
    }
    return {start, start + duration_ns};
}

Slot Timeline::reserve(ns_t now, ns_t ready, ns_t duration_ns) {
    retire(now);
    const Slot slot = probe(now, ready, duration_ns);
    if (duration_ns > 0) insert(slot);
    horizon_ns_ = std::max(horizon_ns_, slot.end_ns);
    return slot;
}

ns_t Timeline::busy_between(ns_t from, ns_t to) const {
    ns_t sum = 0;
    for (const Slot & busy : slots_) {
        const ns_t overlap = std::min(busy.end_ns, to) - std::max(busy.start_ns, from);
        sum += std::max<ns_t>(0, overlap);
    }
    return sum;
}

ns_t Timeline::busy_before(ns_t t) const {
    return retired_busy_ns_ + busy_between(slots_.empty() ? t : slots_.front().start_ns, t);
}

void Timeline::retire(ns_t now) {
    while (!slots_.empty() && slots_.front().end_ns <= now) {
        retired_busy_ns_ += slots_.front().duration_ns();
        slots_.pop_front();
    }
}

void Timeline::insert(Slot slot) {
    const auto after =
        std::find_if(slots_.begin(), slots_.end(), [&](const Slot & busy) { return busy.start_ns >= slot.end_ns; });
    // Back-to-back work is the common case; merging keeps the list short.
    if (after != slots_.begin() && std::prev(after)->end_ns == slot.start_ns) {
        std::prev(after)->end_ns = slot.end_ns;
        return;
    }
    slots_.insert(after, slot);
}

} // namespace xlm::sim
