#include "core.hpp"

#include <algorithm>

namespace xlm {

static bool any_experts_stream(const std::vector<SubLayer *> & sublayers) {
    return std::any_of(sublayers.begin(), sublayers.end(),
                       [](const SubLayer * s) { return s->experts && s->streamed(); });
}

Core & core() {
    static Core * instance = new Core;
    return *instance;
}

Core::Core() : gate([this] { reclaim(); }, [this] { return met_budget(); }) {}

void Core::reclaim() {
    const uint64_t begin_ns = now_ns(), n_budgets = ledger.view().n_budgets;
    if (ledger.over_budget()) {
        // Memory in use must not be freed. Uploads go to the ring only, which waits for its own when it goes.
        inner.synchronize(Stream::compute);
        inner.synchronize(Stream::download);
        cache.shrink_to_budget();
    }
    cache.changed(); // a grown budget lets plans hope again
    stats.n_reclaims++;
    stats.reclaim_ns_max.raise_to(now_ns() - begin_ns);
    const LedgerView view = ledger.view(); // a budget set meanwhile is the next service's
    if (view.n_budgets == n_budgets && view.used_bytes > view.budget_bytes) stats.over_budget_events++;
}

bool Core::met_budget() {
    if (ledger.over_budget()) return false;
    cache.changed();
    return true;
}

void Core::take_schedule() {
    std::unique_ptr<Schedule> taken;
    {
        const std::lock_guard<std::mutex> lock(schedule_mutex);
        taken = std::move(next_schedule);
    }
    if (!taken) return;
    const GateGuard guard(gate);
    apply(*taken);
    schedule = std::move(*taken);
    schedule_id = schedule.id;
}

void Core::note_step(uint32_t tier) {
    last_tier = tier;
    lending.note_step(schedule.reserve_of(tier), schedule.reserve_bytes);
}

// Placements go into the sub-layers; what no tier keeps resident is dropped, the rest stays where it is. Scratch of
// longer steps than this schedule is for would take the place of what it wants: the next step takes what it needs.
void Core::apply(Schedule & taken) {
    const std::vector<SubLayer *> sublayers = registry.sublayers();
    if (!taken.placement.empty() && taken.placement.front().size() != sublayers.size())
        return; // a model ended meanwhile
    for (size_t i = 0; i < taken.priority.size(); i++)
        sublayers[taken.priority[i]]->rank = static_cast<uint32_t>(i);
    bool any_device = false, any_stream = false;
    for (SubLayer * sublayer : sublayers) {
        sublayer->placement.clear();
        for (const auto & tier : taken.placement)
            sublayer->placement.push_back(tier[sublayer->index]);
        if (sublayer->vision) continue;
        any_stream |= sublayer->streamed();
        any_device |= any_stream || sublayer->wanted(XLM_PLACE_RESIDENT);
    }
    inner.synchronize_all();
    cache.n_schedules++;
    cache.last_image = {}; // was placed by another schedule
    cache.ahead_of_image = false;
    for (SubLayer * sublayer : sublayers) {
        if (sublayer->vision) continue; // the phase drops them
        const bool keep = sublayer->kind == XLM_KIND_SMALL ? any_device : sublayer->wanted(XLM_PLACE_RESIDENT);
        if (!keep) cache.drop_copy(*sublayer);
    }
    for (State * state : registry.states())
        if (state->sublayer && !state->sublayer->keeps_states()) cache.drop_state(*state);
    if (!cache.vision_phase) cache.drop_scratch();
    apply_experts(taken, sublayers);
    if (cache.ring.present() && !cache.vision_phase && (!any_stream || cache.ring.capacity_bytes() != taken.ring_bytes))
        cache.ring.drop();
    cache.changed();
}

// Slots that are still wanted stay, with what they hold. Where other weights stream too, the window of the
// experts gets half of the ring's memory.
void Core::apply_experts(Schedule & taken, const std::vector<SubLayer *> & sublayers) {
    bool others_stream = false;
    for (SubLayer * sublayer : sublayers) {
        others_stream |= sublayer->kind != XLM_KIND_EXPERTS && sublayer->streamed();
        if (!sublayer->experts) continue;
        ExpertState & state = *sublayer->experts;
        state.policy = taken.experts.empty() ? xlm_expert_policy{} : taken.experts[sublayer->index];
        const bool device = sublayer->streamed() || sublayer->wanted(XLM_PLACE_RESIDENT);
        if (!device || state.map.n_slots() > state.policy.n_slots) cache.drop_slots(*sublayer);
        const std::lock_guard<std::mutex> lock(state.mutex);
        state.report.n_slots_wanted = state.policy.n_slots;
    }
    if (taken.expert_window_bytes == 0) {
        taken.expert_window_bytes = others_stream ? taken.ring_bytes / 2 : taken.ring_bytes;
        if (others_stream && any_experts_stream(sublayers)) taken.ring_bytes -= taken.expert_window_bytes;
    }
    const uint64_t held_bytes = cache.window.bytes(), rounding_bytes = ExpertWindow::kParts * inner.alignment();
    const bool other =
        held_bytes > taken.expert_window_bytes || held_bytes + rounding_bytes < taken.expert_window_bytes;
    if (cache.window.present() && other) cache.window.drop();
}

// False: the device or the budget refuses, or a reclaim came between; the copy is not whole then.
bool Core::settle_one(SubLayer & sublayer, uint64_t reserve_bytes, WorkAhead & ahead) {
    if (!cache.place_resident(sublayer, reserve_bytes)) return false;
    cache.changed();
    const WorkAhead::Fed fed = ahead.upload(cache, sublayer, &gate);
    if (fed == WorkAhead::Fed::lost || !ahead.finish()) lose_device();
    return fed == WorkAhead::Fed::done && !inner.lost();
}

// A step cut up between device and CPU may need more scratch than a whole one. What it took must not keep out the very
// copies with which steps would be whole again: scratch lives for a step, and the next one takes what it needs.
bool Core::whole_without_scratch() {
    const LedgerView view = ledger.view();
    uint64_t missing_bytes = 0;
    for (const SubLayer * sublayer : registry.sublayers()) {
        if (sublayer->vision || sublayer->kind == XLM_KIND_LOOKUP) continue;
        if (sublayer->kind != XLM_KIND_SMALL && !sublayer->wanted(XLM_PLACE_RESIDENT)) return false;
        missing_bytes += sublayer->copy ? 0 : sublayer->device_bytes;
    }
    for (const State * state : registry.states())
        missing_bytes += state->copy ? 0 : state->device_bytes;
    const uint64_t kept_bytes = view.used_bytes - view.of(Purpose::scratch);
    const uint64_t whole_bytes = kept_bytes + missing_bytes + reserve_bytes();
    return missing_bytes > 0 && view.used_bytes + missing_bytes > view.budget_bytes && whole_bytes <= view.budget_bytes;
}

// Of the language model, what matters most first.
std::vector<SubLayer *> Core::wanted_copies() {
    std::vector<SubLayer *> wanted;
    for (SubLayer * sublayer : registry.sublayers()) {
        if (sublayer->vision) continue;
        const bool device = sublayer->wanted(XLM_PLACE_RESIDENT) || sublayer->streamed();
        if (device && sublayer->small_group && !sublayer->small_group->uploaded)
            wanted.push_back(sublayer->small_group);
        if (sublayer->wanted(XLM_PLACE_RESIDENT) && !sublayer->uploaded && sublayer->seen_multiplied)
            wanted.push_back(sublayer);
    }
    std::stable_sort(wanted.begin(), wanted.end(), [](const SubLayer * a, const SubLayer * b) {
        const bool a_small = a->kind == XLM_KIND_SMALL, b_small = b->kind == XLM_KIND_SMALL;
        return a_small != b_small ? a_small : a->rank < b->rank;
    });
    return wanted;
}

// True while something may be left.
bool Core::settle_copies(const std::vector<SubLayer *> & wanted, uint64_t reserve_bytes, uint64_t max_bytes,
                         uint64_t & uploaded_bytes) {
    WorkAhead ahead(inner, stats, Stream::upload, upload_pace);
    for (SubLayer * sublayer : wanted) {
        if (sublayer->uploaded) continue;
        if (uploaded_bytes > 0 && uploaded_bytes + sublayer->device_bytes > max_bytes) return true;
        // What does not fit is left to the schedule's fallback; smaller ones behind it may fit.
        if (settle_one(*sublayer, reserve_bytes, ahead)) uploaded_bytes += sublayer->device_bytes;
        if (inner.lost()) return false;
        if (!gate.requested()) continue;
        gate.serve_requests(); // nothing is in flight: a reclaim need not wait for the rest
        return true;
    }
    return false;
}

bool Core::settle(uint64_t max_bytes) {
    const GateGuard guard(gate);
    if (!inner.usable() || (cache.vision_phase && !cache.ahead_of_image)) return false;
    uint64_t uploaded_bytes = 0;
    if (cache.vision_phase)
        return settle_copies(wanted_for_image(), cache.last_image.scratch_bytes, max_bytes, uploaded_bytes);
    if (whole_without_scratch()) cache.drop_scratch();
    if (settle_copies(wanted_copies(), reserve_bytes(), max_bytes, uploaded_bytes)) return true;
    if (inner.lost()) return false;
    for (SubLayer * sublayer : registry.sublayers()) {
        if (fill_slots(*sublayer, max_bytes, uploaded_bytes)) return true;
        if (inner.lost()) return false;
        gate.serve_requests();
    }
    return false;
}

// Empty slots take the experts that recent steps used most: after a reclaim they are asked for again.
// True while something is left that `max_bytes` does not allow.
bool Core::fill_slots(SubLayer & sublayer, uint64_t max_bytes, uint64_t & uploaded_bytes) {
    if (!sublayer.experts || sublayer.copy || sublayer.experts->policy.n_slots == 0) return false;
    if (!sublayer.streamed() && !sublayer.wanted(XLM_PLACE_RESIDENT)) return false;
    ExpertState & state = *sublayer.experts;
    if (!state.scores.seen() || !cache.place_slots(sublayer, reserve_bytes())) return false;
    const uint64_t each = expert_bytes(sublayer);
    const std::vector<SlotLoad> loads = fill_empty(state.map, state.scores.values(), state.n_experts);
    size_t n = 0;
    bool ok = true;
    for (; ok && n < loads.size() && (uploaded_bytes == 0 || uploaded_bytes + each <= max_bytes); n++) {
        ok = load_slot(inner, Stream::upload, sublayer, loads[n]);
        uploaded_bytes += each;
        stats.expert_bytes_uploaded += each;
    }
    if (n > 0 && !(ok && inner.synchronize(Stream::upload))) lose_device();
    state.publish_slots();
    return inner.usable() && n < loads.size();
}

void Core::lose_device() {
    inner.mark_lost();
    inner.drain();
    cache.drop_all();
}

void Core::forget_buffer(HostBuffer * buffer) {
    if (buffer->tensors.empty()) { // compute memory: no copies of it outlive a graph
        registry.remove_buffer(buffer);
        return;
    }
    const std::lock_guard<std::mutex> running(exec_mutex);
    const GateGuard guard(gate);
    inner.synchronize_all();
    cache.ring.forget();
    registry.remove_buffer(buffer);
    if (registry.sublayers().empty()) cache.drop_all(); // nobody is left to use ring and scratch
    cache.changed();
}

void Core::rest() {
    const uint64_t began_ns = now_ns();
    if (rests.due_ns(began_ns) <= began_ns) return;
    const auto over = [&] { return abort_step.load() || rests.due_ns(began_ns) <= now_ns(); };
    gate.rest(std::chrono::nanoseconds(rests.due_ns(began_ns) - began_ns), over);
    const uint64_t ended_ns = now_ns();
    rests.rested(began_ns, ended_ns);
    stats.ns_paced += ended_ns - began_ns;
}

} // namespace xlm
