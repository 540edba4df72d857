// Plans that are taken again. One by which all that the schedule wants on the device is resident there is as good as
// any that could be made: as soon as its copies and its scratch have their places again, only the scratch's address is
// new.
#include "planner.hpp"

namespace xlm {

namespace {

// A tower's patches go as many at a time as there was memory for.
bool same_tiles(const Plan & plan, const PlanLimits & limits) {
    if (plan.again.bound_bytes == limits.vision_bound_bytes) return true;
    return plan.tile_patches == kAllPatches && plan.again.need_bytes <= limits.vision_bound_bytes;
}

bool wants_copy(const SubLayer & sublayer, uint32_t tier) {
    if (sublayer.copy || sublayer.kind == XLM_KIND_SMALL) return true;
    return tier < sublayer.placement.size() && sublayer.placement[tier] == XLM_PLACE_RESIDENT;
}

bool place_all(const Plan & plan, const PlanLimits & limits, bool vision, Cache & cache) {
    const uint64_t reserve_bytes = vision ? plan.again.scratch_bytes + limits.ring_bytes : limits.reserve_bytes;
    if (!cache.place_scratch(plan.again.scratch_bytes)) return false;
    for (SubLayer * sublayer : plan.again.residents)
        if (!wants_copy(*sublayer, plan.tier) || !cache.place_resident(*sublayer, reserve_bytes)) return false;
    for (State * state : plan.again.states)
        if (!cache.place_state(*state, reserve_bytes)) return false;
    return true;
}

void move_scratch(Plan & plan, const DeviceBuffer & scratch) {
    for (ggml_tensor & shadow : plan.shadows) {
        if (!shadow.data) continue;
        shadow.data = scratch.base() + (static_cast<char *>(shadow.data) - plan.again.base);
        shadow.buffer = scratch.get();
    }
    plan.again.base = scratch.base();
}

} // namespace

void Planner::note_again() {
    PlanAgain & again = plan_.again;
    again.whole = plan_.from == 0 && !plan_.partial && plan_.uses_device && plan_.n_fallback == 0 &&
                  plan_.stream_order.empty() && info_.experts.empty();
    if (!again.whole) return;
    for (const Segment & segment : plan_.segments) {
        for (SubLayer * sublayer : segment.residents)
            add_once(again.residents, sublayer);
        for (State * state : segment.states)
            add_once(again.states, state);
    }
    again.n_schedules = cache_.n_schedules;
    again.bound_bytes = limits_.vision_bound_bytes;
    again.need_bytes = info_.vision ? vision_need_bytes() : 0;
    again.image = cache_.last_image;
    again.base = cache_.scratch().base();
}

bool take_again(Plan & plan, bool vision, const PlanLimits & limits, Cache & cache) {
    const PlanAgain & again = plan.again;
    if (!again.whole || again.n_schedules != cache.n_schedules) return false;
    if (vision && (!same_tiles(plan, limits) || again.need_bytes > cache.budget_bytes())) return false;
    if (vision) cache.give_way(again.need_bytes, limits.vision_bound_bytes);
    if (!place_all(plan, limits, vision, cache)) return false;
    move_scratch(plan, cache.scratch());
    if (vision) cache.last_image = again.image;
    plan.epoch = cache.epoch(); // last: placing may have raised it
    return true;
}

} // namespace xlm
