// The vision phase: while images are encoded, the language model's copies make room, so that the device
// never holds more than the larger of the two.
#include "core.hpp"

#include <algorithm>

namespace xlm {

namespace {

uint64_t held_bytes(const SubLayer & sublayer) {
    return sublayer.copy.bytes() + (sublayer.experts ? sublayer.experts->slots.bytes() : 0);
}

} // namespace

void Core::enter_vision() {
    if (cache.vision_phase) return;
    vision_bound_bytes = ledger.view().used_bytes;
    inner.synchronize_all();
    cache.vision_phase = true;
    cache.drop_workspace();
}

void Core::leave_vision() {
    if (!cache.vision_phase) return;
    inner.synchronize_all();
    cache.vision_phase = false;
    cache.drop_workspace();
    for (SubLayer * sublayer : registry.sublayers())
        if (sublayer->vision) cache.drop_resident(*sublayer);
}

// Copies that a new plan of the phase may still evict: all of them cost is an upload afterwards.
void Cache::give_way(uint64_t need_bytes, uint64_t bound_bytes) {
    uint64_t kept = 0;
    for (SubLayer * sublayer : registry_.sublayers())
        if (!sublayer->vision) kept += held_bytes(*sublayer);
    for (State * state : registry_.states())
        kept += state->copy.bytes();
    const uint64_t limit = std::min(ledger_.view().budget_bytes, std::max(need_bytes, bound_bytes));
    const auto too_much = [&] { return kept > 0 && kept + std::min(need_bytes, limit) > limit; };
    if (too_much()) inner_.synchronize_all();
    for (SubLayer * sublayer : eviction_order()) {
        if (sublayer->vision || !too_much()) continue;
        kept -= held_bytes(*sublayer);
        drop_resident(*sublayer);
    }
    for (State * state : registry_.states()) {
        if (!too_much()) break;
        kept -= state->copy.bytes();
        drop_state(*state);
    }
}

void Cache::drop_workspace() {
    if (ring.present()) ring.drop();
    if (window.present()) window.drop();
    drop_scratch();
    changed();
}

void Cache::drop_vision_residents() {
    inner_.synchronize_all();
    for (SubLayer * sublayer : registry_.sublayers())
        if (sublayer->vision) drop_resident(*sublayer);
}

} // namespace xlm
