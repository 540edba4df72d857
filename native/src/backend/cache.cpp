#include "cache.hpp"

#include <algorithm>
#include <utility>

namespace xlm {

namespace {

// The place of a copy that is no more.
void nowhere(ggml_tensor & shadow) {
    shadow.buffer = nullptr;
    shadow.data = nullptr;
}

} // namespace

bool Cache::fits_beside_reserve(uint64_t bytes, uint64_t reserve_bytes) const {
    return bytes <= room_beside_reserve(reserve_bytes);
}

uint64_t Cache::room_beside_reserve(uint64_t reserve_bytes) const {
    const LedgerView view = ledger_.view();
    const uint64_t kept =
        view.of(Purpose::resident) + view.of(Purpose::kv) + view.of(Purpose::expert_slots) + reserve_bytes;
    return view.budget_bytes > kept ? view.budget_bytes - kept : 0;
}

void Cache::note_refusal() {
    if (inner_.device_refused()) stats_.n_device_refusals++;
}

bool Cache::place_resident(SubLayer & sublayer, uint64_t reserve_bytes) {
    if (sublayer.copy) return true;
    if (sublayer.kind == XLM_KIND_LOOKUP || sublayer.device_bytes == 0) return false;
    const uint64_t slots_bytes = sublayer.experts ? sublayer.experts->slots.bytes() : 0; // all experts need no slots
    const uint64_t more_bytes = sublayer.device_bytes - std::min(sublayer.device_bytes, slots_bytes);
    if (sublayer.kind != XLM_KIND_SMALL && !fits_beside_reserve(more_bytes, reserve_bytes)) return false;
    drop_slots(sublayer);
    sublayer.copy = inner_.allocate(Purpose::resident, sublayer.device_bytes);
    sublayer.uploaded = false;
    sublayer.begun_bytes = 0;
    if (!sublayer.copy) {
        note_refusal();
        return false;
    }
    changed();                      // other plans may stream what has a copy now
    return point_at_copy(sublayer); // operations on nothing name it without an upload
}

bool Cache::place_state(State & state, uint64_t reserve_bytes) {
    if (state.copy) return true;
    if (!fits_beside_reserve(state.device_bytes, reserve_bytes)) return false;
    state.copy = inner_.allocate(Purpose::kv, state.device_bytes);
    if (!state.copy) {
        note_refusal();
        return false;
    }
    changed();
    state.shadow.buffer = state.copy.get();
    state.shadow.data = state.copy.base();
    state.mark_dirty({0, ggml_nbytes(state.tensor)});
    return !inner_.needs_padding(state.tensor) || inner_.init_tensor(&state.shadow);
}

bool Cache::place_scratch(uint64_t bytes) {
    if (scratch_.bytes() >= bytes) return true;
    drop_scratch(); // first, so that both need not fit
    scratch_ = inner_.allocate(Purpose::scratch, bytes);
    if (!scratch_) note_refusal();
    return static_cast<bool>(scratch_);
}

bool Cache::place_ring(uint64_t bytes, uint64_t largest_piece_bytes) {
    const bool before = ring.present();
    const bool ok = ring.ensure(bytes, largest_piece_bytes, ledger_.view());
    if (!before && !ok) note_refusal();
    return ok;
}

bool Cache::on_its_way(SubLayer & sublayer) {
    sublayer.arrives = inner_.next_event(Events::copies);
    return inner_.record(Stream::upload, sublayer.arrives);
}

bool Cache::await(SubLayer & sublayer) {
    ggml_backend_event_t arrives = std::exchange(sublayer.arrives, nullptr);
    return !arrives || inner_.wait(Stream::compute, arrives);
}

bool Cache::point_at_copy(SubLayer & sublayer) {
    for (auto & weight : sublayer.weights) {
        weight->shadow.buffer = sublayer.copy.get();
        weight->shadow.data = sublayer.copy.base() + weight->offset;
        if (inner_.needs_padding(weight->tensor) && !inner_.init_tensor(&weight->shadow)) return false;
    }
    return true;
}

// Fewer slots than asked for are better than none, as long as they are worth the trouble.
uint32_t Cache::slots_that_fit(const SubLayer & sublayer, uint64_t room_bytes) const {
    const uint32_t wanted = std::min(sublayer.experts->policy.n_slots, sublayer.experts->n_experts);
    const uint64_t each = expert_bytes(sublayer), overhead = slots_bytes(inner_, sublayer, 1) - each;
    if (room_bytes < overhead + each) return 0;
    uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(wanted, (room_bytes - overhead) / each));
    while (n > 0 && slots_bytes(inner_, sublayer, n) > room_bytes)
        n--;
    return n;
}

bool Cache::place_slots(SubLayer & sublayer, uint64_t reserve_bytes) {
    ExpertState & state = *sublayer.experts;
    const uint32_t wanted = std::min(state.policy.n_slots, state.n_experts), have = state.map.n_slots();
    const uint64_t room = room_beside_reserve(reserve_bytes) + state.slots.bytes();
    const uint32_t n = wanted == have ? have : slots_that_fit(sublayer, room);
    // A few more slots are not worth losing what the ones there hold.
    if (state.slots && have <= wanted && n < std::min(wanted, have + have / 2 + 1)) return true;
    if (state.slots && n == have) return true;
    drop_slots(sublayer);
    if (n == 0) return false;
    state.slots = inner_.allocate(Purpose::expert_slots, slots_bytes(inner_, sublayer, n));
    if (!state.slots) {
        note_refusal();
        return false;
    }
    changed();
    return set_up_slots(inner_, sublayer, n);
}

bool Cache::place_window(uint64_t bytes, uint64_t largest_expert_bytes) {
    const LedgerView view = ledger_.view();
    const uint64_t left = view.budget_bytes > view.used_bytes ? view.budget_bytes - view.used_bytes : 0;
    bytes = std::min(bytes, left + window.bytes());
    const bool ok = window.ensure(bytes, largest_expert_bytes);
    if (!ok && window.parts_of(bytes, largest_expert_bytes) >= 2) note_refusal();
    return ok;
}

void Cache::drop_slots(SubLayer & sublayer) {
    if (!sublayer.experts || !sublayer.experts->slots) return;
    inner_.synchronize(Stream::upload);
    sublayer.experts->forget_slots();
    stats_.n_evictions++;
    changed();
}

void Cache::drop_resident(SubLayer & sublayer) {
    drop_slots(sublayer);
    drop_copy(sublayer);
}

void Cache::drop_copy(SubLayer & sublayer) {
    if (!sublayer.copy) return;
    if (std::exchange(sublayer.arrives, nullptr)) inner_.synchronize(Stream::upload);
    sublayer.copy.reset();
    sublayer.uploaded = false;
    sublayer.begun_bytes = 0;
    for (auto & weight : sublayer.weights)
        nowhere(weight->shadow);
    stats_.n_evictions++;
    changed();
}

void Cache::drop_state(State & state) {
    if (!state.copy) return;
    state.copy.reset();
    state.unflushed.clear();
    nowhere(state.shadow);
    changed();
}

void Cache::drop_scratch() {
    if (!scratch_) return;
    scratch_.reset();
    changed();
}

void sort_for_eviction(std::vector<SubLayer *> & sublayers) {
    std::stable_sort(sublayers.begin(), sublayers.end(), [](const SubLayer * a, const SubLayer * b) {
        const bool a_small = a->kind == XLM_KIND_SMALL, b_small = b->kind == XLM_KIND_SMALL;
        if (a_small != b_small) return b_small;
        if (a->rank != b->rank) return a->rank > b->rank;
        return a->index > b->index;
    });
}

std::vector<SubLayer *> Cache::eviction_order() {
    std::vector<SubLayer *> order = registry_.sublayers();
    order.erase(std::remove_if(order.begin(), order.end(),
                               [](const SubLayer * s) { return !s->copy && !(s->experts && s->experts->slots); }),
                order.end());
    sort_for_eviction(order);
    if (vision_phase) // a tower's copies are in use, the language model's are not
        std::stable_partition(order.begin(), order.end(), [](const SubLayer * s) { return !s->vision; });
    return order;
}

void Cache::shrink_to_budget() {
    if (!ledger_.over_budget()) return;
    const std::vector<SubLayer *> order = eviction_order();
    const auto is_small = [](const SubLayer * s) { return s->kind == XLM_KIND_SMALL; };
    for (SubLayer * sublayer : order)
        if (vision_phase && !sublayer->vision && ledger_.over_budget()) drop_resident(*sublayer);
    for (State * state : registry_.states())
        if (vision_phase && ledger_.over_budget()) drop_state(*state);
    for (SubLayer * sublayer : order)
        if (!is_small(sublayer) && ledger_.over_budget()) drop_resident(*sublayer);
    for (State * state : registry_.states())
        if (ledger_.over_budget()) drop_state(*state);
    if (ledger_.over_budget() && window.present()) {
        window.drop();
        changed();
    }
    if (ledger_.over_budget() && ring.present()) {
        ring.drop();
        changed();
    }
    if (ledger_.over_budget()) drop_scratch();
    for (SubLayer * sublayer : order)
        if (is_small(sublayer) && ledger_.over_budget()) drop_resident(*sublayer);
}

void Cache::take_back(uint64_t reserve_bytes, uint32_t tier) {
    const auto too_much = [&] {
        const LedgerView view = ledger_.view();
        const uint64_t kept = view.of(Purpose::resident) + view.of(Purpose::kv) + view.of(Purpose::expert_slots);
        return kept + reserve_bytes > view.budget_bytes;
    };
    if (!too_much()) return;
    inner_.synchronize(Stream::compute);
    inner_.synchronize(Stream::download);
    std::vector<SubLayer *> order = registry_.sublayers();
    sort_for_eviction(order);
    order.erase(std::remove_if(order.begin(), order.end(),
                               [](const SubLayer * s) { return s->vision || s->kind == XLM_KIND_SMALL; }),
                order.end());
    for (SubLayer * sublayer : order) {
        if (sublayer->placed_by(tier, XLM_PLACE_RESIDENT)) continue;
        if (sublayer->copy && too_much()) drop_copy(*sublayer);
        for (State * state : sublayer->states)
            if (!sublayer->placed_by(tier, XLM_PLACE_STREAM) && too_much()) drop_state(*state);
    }
    for (SubLayer * sublayer : order) // below the schedule's budget its own copies filled what was to be lent
        if (too_much()) drop_resident(*sublayer);
}

bool Cache::drop_least() {
    const std::vector<SubLayer *> order = eviction_order();
    if (order.empty() || order.front()->kind == XLM_KIND_SMALL) return false;
    drop_resident(*order.front());
    return true;
}

void Cache::drop_all() {
    for (SubLayer * sublayer : registry_.sublayers())
        drop_resident(*sublayer);
    for (State * state : registry_.states())
        drop_state(*state);
    if (ring.present()) ring.drop();
    window.drop();
    drop_scratch();
    changed();
}

void Cache::drop_weights() {
    inner_.synchronize_all();
    for (SubLayer * sublayer : registry_.sublayers()) {
        drop_resident(*sublayer);
        sublayer->packed.clear();
    }
    ring.forget();
    changed();
}

} // namespace xlm
