#include "link_engine.hpp"

#include <algorithm>

namespace xlm::sim {

ns_t LinkModel::duration_ns(uint64_t bytes) const {
    if (bytes_per_s <= 0) return 0;
    return static_cast<ns_t>(latency_ns + static_cast<double>(bytes) / bytes_per_s * 1e9);
}

Slot LinkEngine::reserve(const LinkModel & model, ns_t now, ns_t ready, uint64_t bytes) {
    const ns_t duration_ns = model.duration_ns(bytes);
    switch (model.arbitration) {
    case XLM_SIM_CHUNKED: return reserve_chunked(model, now, ready, bytes);
    case XLM_SIM_SMALL_FIRST:
        return bytes <= small_copy_bytes ? reserve_small(now, ready, duration_ns)
                                         : reserve_big(now, ready, duration_ns);
    default: return big_.reserve(now, ready, duration_ns);
    }
}

Slot LinkEngine::reserve_chunked(const LinkModel & model, ns_t now, ns_t ready, uint64_t bytes) {
    const ns_t duration_ns = model.duration_ns(bytes);
    const uint64_t n_chunks = (bytes + link_chunk_bytes - 1) / link_chunk_bytes;
    const ns_t foreign_chunk_ns = model.duration_ns(link_chunk_bytes);
    const Slot in_order = big_.reserve(now, ready, duration_ns);
    const ns_t wait_ns =
        std::min<ns_t>(in_order.start_ns - std::max(now, ready), static_cast<ns_t>(n_chunks) * foreign_chunk_ns);
    return {std::max(now, ready), std::max(now, ready) + wait_ns + duration_ns};
}

Slot LinkEngine::reserve_small(ns_t now, ns_t ready, ns_t duration_ns) {
    const Slot slot = small_.reserve(now, ready, duration_ns);
    debt_ns_ += big_.busy_between(slot.start_ns, slot.end_ns);
    return slot;
}

Slot LinkEngine::reserve_big(ns_t now, ns_t ready, ns_t duration_ns) {
    const Slot first = big_.probe(now, ready, duration_ns + debt_ns_);
    const ns_t passed_by_ns = small_.busy_between(first.start_ns, first.end_ns);
    const Slot slot = big_.reserve(now, ready, duration_ns + debt_ns_ + passed_by_ns);
    debt_ns_ = 0;
    return slot;
}

} // namespace xlm::sim
