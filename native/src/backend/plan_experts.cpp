// Experts that are handled one by one: whether there is memory for them, and what the report says.
#include "planner.hpp"

namespace xlm {

bool Planner::may_go_by_expert(const ExpertGroup & group) const {
    const size_t u = static_cast<size_t>(group.unit);
    return device_units_[u] && needs_[u].wanted != XLM_PLACE_CPU && plan_.from <= group.first;
}

// Slots and, where a step may need more experts than there are slots, the window.
void Planner::place_experts() {
    for (size_t g = 0; g < info_.experts.size(); g++) {
        const ExpertGroup & group = info_.experts[g];
        if (!may_go_by_expert(group) || group.sublayer->copy) continue;
        if (group.sublayer->experts->policy.n_slots > 0) cache_.place_slots(*group.sublayer, limits_.reserve_bytes);
        plan_.experts[g].by_expert =
            slots_suffice(group) || cache_.place_window(limits_.window_bytes, largest_expert_bytes(*group.sublayer));
        if (plan_.experts[g].by_expert) by_expert_.insert(group.sublayer);
    }
    settle_experts();
}

// No step of this graph can need more experts than there are slots.
bool Planner::slots_suffice(const ExpertGroup & group) {
    const uint32_t n_slots = group.sublayer->experts->map.n_slots();
    return n_slots >= group.n_used && n_slots >= std::min(group.n_pairs(), group.sublayer->experts->n_experts);
}

// Slots that were dropped to make room may have been all there was.
void Planner::keep_experts_with_place() {
    for (size_t g = 0; g < info_.experts.size(); g++) {
        const ExpertGroup & group = info_.experts[g];
        const bool window = cache_.window.experts_per_part(largest_expert_bytes(*group.sublayer)) > 0;
        if (plan_.experts[g].by_expert && !window && !slots_suffice(group))
            device_units_[static_cast<size_t>(group.unit)] = 0;
    }
}

// All units of a sub-layer go the same way; its weights need no other place then.
void Planner::settle_experts() {
    for (size_t u = 0; u < needs_.size(); u++)
        for (Weight * weight : needs_[u].weights)
            if (weight->sublayer == info_.units[u].sublayer && by_expert_.count(weight->sublayer) &&
                !unit_goes_by_expert(u))
                by_expert_.erase(weight->sublayer);
    for (size_t g = 0; g < info_.experts.size(); g++)
        plan_.experts[g].by_expert &= by_expert_.count(info_.experts[g].sublayer) > 0;
    for (size_t u = 0; u < needs_.size(); u++) {
        leave_out_experts(needs_[u]);
        note_expert_mode(u);
    }
}

void Planner::leave_out_experts(UnitNeeds & needs) const {
    size_t kept = 0;
    for (size_t w = 0; w < needs.weights.size(); w++) {
        if (by_expert_.count(needs.weights[w]->sublayer)) continue;
        needs.weights[kept] = needs.weights[w];
        needs.by_rows[kept++] = needs.by_rows[w];
    }
    needs.weights.resize(kept);
    needs.by_rows.resize(kept);
}

bool Planner::unit_goes_by_expert(size_t u) const {
    for (size_t g = 0; g < info_.experts.size(); g++)
        if (info_.experts[g].unit == static_cast<int>(u)) return plan_.experts[g].by_expert;
    return false;
}

void Planner::note_expert_mode(size_t u) {
    SubLayer * sublayer = info_.units[u].sublayer;
    if (!sublayer || !sublayer->experts || plan_.from > info_.units[u].first) return;
    ExpertState & state = *sublayer->experts;
    if (needs_[u].wanted == XLM_PLACE_CPU) return state.set_mode(XLM_EXPERTS_CPU);
    if (sublayer->copy) return state.set_mode(XLM_EXPERTS_RESIDENT);
    if (by_expert_.count(sublayer)) return state.set_mode(state.slots ? XLM_EXPERTS_SLOTS : XLM_EXPERTS_WINDOW);
    const bool known = std::any_of(info_.experts.begin(), info_.experts.end(),
                                   [&](const ExpertGroup & group) { return group.unit == static_cast<int>(u); });
    state.set_mode(known ? XLM_EXPERTS_WHOLE_WINDOW : XLM_EXPERTS_WHOLE_GRAPH);
    plan_.n_experts_whole++;
}

// The group whose core begins at node i and is handled by expert; -1: none.
int Planner::group_at(int i) const {
    for (size_t g = 0; g < info_.experts.size(); g++)
        if (info_.experts[g].first == i && plan_.experts[g].by_expert &&
            device_units_[static_cast<size_t>(info_.experts[g].unit)])
            return static_cast<int>(g);
    return -1;
}

} // namespace xlm
