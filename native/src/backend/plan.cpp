#include "planner.hpp"

namespace xlm {

Planner::Planner(GraphInfo & info, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits,
                 Inner & inner, Cache & cache)
    : info_(info), graph_(graph), limits_(limits), inner_(inner), cache_(cache) {
    plan_.tier = tier;
    plan_.from = from;
    plan_.max_segment_cost = limits.max_segment_cost;
    plan_.reserve_bytes = limits.reserve_bytes;
    plan_.experts.resize(info.experts.size());
    plan_.partial = limits.rows_node >= 0;
}

Plan Planner::run() {
    collect_needs();
    info_.vision ? plan_vision() : plan_step();
    count_fallbacks();
    for (Segment & segment : plan_.segments)
        if (segment.on_device) patch(segment);
    note_again();
    plan_.epoch = cache_.epoch(); // last: placing may have raised it
    return std::move(plan_);
}

void Planner::plan_step() {
    take_memory();
    while (!lay_out()) {
        make_room();
        mark_nodes();
        cut_and_list();
    }
}

// A vision graph may fill the budget to the brim: what its cut really needs is reserved at the next try.
void Planner::plan_vision() {
    for (size_t tries = 0; tries < 3 + kTilePatches.size(); tries++) {
        device_units_.clear();
        take_memory();
        if (lay_out()) return note_image();
        cache_.drop_vision_residents();
    }
    device_units_.assign(needs_.size(), 0);
    mark_nodes();
    cut_and_list();
}

void Planner::take_memory() {
    if (inner_.usable() && wants_device()) {
        place_everything();
        mark_nodes();
    }
    if (on_device_.empty()) on_device_.assign(info_.nodes.size(), 0);
    cut_and_list();
}

void Planner::collect_needs() {
    needs_.resize(info_.units.size());
    for (size_t u = 0; u < needs_.size(); u++) {
        const SubLayer * sublayer = info_.units[u].sublayer;
        if (sublayer && plan_.tier < sublayer->placement.size())
            needs_[u].wanted = static_cast<xlm_placement>(sublayer->placement[plan_.tier]);
        if (needs_[u].wanted != XLM_PLACE_CPU) collect_unit(u);
    }
}

void Planner::collect_unit(size_t u) {
    UnitNeeds & needs = needs_[u];
    for (int i = std::max(info_.units[u].first, plan_.from); i <= info_.units[u].last; i++) {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        if (node.view || node.cpu_only) continue;
        needs.any_node = true;
        for (uint32_t s = 0; s < node.n_sources; s++)
            collect_root(needs, info_.sources[node.first_source + s]);
        collect_root(needs, node.root);
    }
    for (const Weight * weight : needs.weights)
        needs.cost += weight->device_bytes;
    for (const State * state : needs.states)
        needs.cost += state_cost(*state);
}

void Planner::collect_root(UnitNeeds & needs, int r) {
    const Root & root = info_.roots[static_cast<size_t>(r)];
    if (root.weight && std::find(needs.weights.begin(), needs.weights.end(), root.weight) == needs.weights.end()) {
        needs.weights.push_back(root.weight);
        needs.by_rows.push_back(root.by_rows);
    }
    if (root.state) add_once(needs.states, root.state);
}

bool Planner::wants_device() const {
    return std::any_of(needs_.begin(), needs_.end(), [](const UnitNeeds & n) { return n.any_node; });
}

// The cuts take more scratch than the reserve foresaw: one copy less, or nothing on the device at all.
void Planner::make_room() {
    if (!cache_.drop_least()) return device_units_.assign(needs_.size(), 0);
    keep_copied_or_streamed();
    keep_experts_with_place();
}

void Planner::mark_nodes() {
    on_device_.assign(info_.nodes.size(), 0);
    for (size_t i = static_cast<size_t>(plan_.from); i < info_.nodes.size(); i++) {
        const Node & node = info_.nodes[i];
        on_device_[i] = !node.view && !node.cpu_only && device_units_[static_cast<size_t>(node.owner)];
    }
}

void Planner::count_fallbacks() {
    for (size_t u = 0; u < needs_.size(); u++)
        if (needs_[u].any_node && info_.units[u].last >= plan_.from && (device_units_.empty() || !device_units_[u]))
            plan_.n_fallback++;
}

Plan make_plan(GraphInfo & info, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits, Inner & inner,
               Cache & cache) {
    return Planner(info, graph, tier, from, limits, inner, cache).run();
}

} // namespace xlm
