// The vision phase: while images are encoded, the language model's copies make room, so that the device
// never holds more than the larger of the two.
#include "core.hpp"

#include <algorithm>
#include <utility>

namespace xlm {

namespace {

// Of an output matrix, while llama.cpp makes the step of image tokens ready: that takes longer.
constexpr uint64_t kHeadStartNs = 300'000;

uint64_t held_bytes(const SubLayer & sublayer) {
    return sublayer.copy.bytes() + (sublayer.experts ? sublayer.experts->slots.bytes() : 0);
}

// Where in a step it comes: small tensors are read everywhere, the output matrix last.
std::pair<int, int32_t> use(const SubLayer & sublayer) {
    const int part = sublayer.kind == XLM_KIND_SMALL ? 0 : sublayer.kind == XLM_KIND_OUTPUT ? 2 : 1;
    return {part, sublayer.layer};
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
    cache.vision_phase = cache.ahead_of_image = false;
    cache.drop_workspace();
    for (SubLayer * sublayer : registry.sublayers())
        if (sublayer->vision) cache.drop_resident(*sublayer);
}

// While libmtmd scales the picture the link is idle: the language model makes room as for the last image, and
// settle() brings the tower's copies in. Where those did not all fit then, the graph is waited for.
void Core::begin_vision() {
    const Cache::LastImage & last = cache.last_image;
    if (cache.vision_phase || !inner.usable() || last.need_bytes == 0 || last.need_bytes > cache.budget_bytes()) return;
    enter_vision();
    cache.ahead_of_image = true;
    cache.give_way(last.need_bytes, vision_bound_bytes);
}

std::vector<SubLayer *> Core::wanted_for_image() {
    std::vector<SubLayer *> wanted;
    const auto add = [&](SubLayer * sublayer) {
        const bool known = std::find(wanted.begin(), wanted.end(), sublayer) != wanted.end();
        if (sublayer && !sublayer->uploaded && !known) wanted.push_back(sublayer);
    };
    for (SubLayer * sublayer : registry.sublayers()) {
        const uint32_t tier = cache.last_image.tier;
        if (!sublayer->vision || !sublayer->seen_multiplied || tier >= sublayer->placement.size()) continue;
        if (sublayer->placement[tier] != XLM_PLACE_RESIDENT) continue;
        add(sublayer->small_group);
        add(sublayer);
    }
    return wanted;
}

// As many as may be queued without making a reclaim wait, in the order in which a step needs them; others come with the
// step itself. What fits is decided by rank. The output matrix comes last: a step of image tokens does without it, and
// what that step sends up would wait behind it. Its beginning goes up until then.
void Core::bring_back() {
    if (!inner.usable() || !inner.has_events()) return;
    std::vector<SubLayer *> coming;
    for (SubLayer * sublayer : wanted_copies()) // beside all of the reserve: a step of image tokens follows
        if (cache.place_resident(*sublayer, schedule.reserve_bytes)) coming.push_back(sublayer);
    std::stable_sort(coming.begin(), coming.end(),
                     [](const SubLayer * a, const SubLayer * b) { return use(*a) < use(*b); });
    cache.changed();
    output_is_to_come = queue_copies(coming, false);
    if (output_is_to_come) begin_output(coming);
}

void Core::begin_output(const std::vector<SubLayer *> & copies) {
    WorkAhead ahead(inner, stats, Stream::upload, upload_pace);
    for (SubLayer * sublayer : copies) {
        const bool begins = sublayer->kind == XLM_KIND_OUTPUT && sublayer->copy && !sublayer->weights.empty();
        if (!begins || sublayer->uploaded || sublayer->begun_bytes > 0) continue;
        const WorkAhead::Fed fed = ahead.begin_upload(cache, *sublayer, kHeadStartNs);
        if (fed != WorkAhead::Fed::done || !cache.on_its_way(*sublayer)) lose_device();
        return; // one, so that no more is queued than that
    }
}

// Behind what the first step after the phase was given.
void Core::bring_output() {
    if (!std::exchange(output_is_to_come, false) || cache.vision_phase || !inner.usable()) return;
    queue_copies(wanted_copies(), true);
}

// Of copies that have their place, those of output matrices or all others. True: all of them were queued.
bool Core::queue_copies(const std::vector<SubLayer *> & copies, bool output) {
    WorkAhead ahead(inner, stats, Stream::upload, upload_pace);
    uint64_t queued_ns = 0;
    for (SubLayer * sublayer : copies) {
        if (sublayer->uploaded || !sublayer->copy || (sublayer->kind == XLM_KIND_OUTPUT) != output) continue;
        queued_ns += upload_pace.predict_ns(sublayer->device_bytes);
        if (queued_ns > kQueueNs - kHeadStartNs) return false;
        if (ahead.upload(cache, *sublayer, nullptr) == WorkAhead::Fed::done && cache.on_its_way(*sublayer)) continue;
        lose_device();
        return false;
    }
    return true;
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
