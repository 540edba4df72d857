#include "plan.hpp"

#include "experts_graph.hpp"

#include <algorithm>
#include <unordered_set>

namespace xlm {

namespace {

template <typename T>
void add_once(std::vector<T> & list, const T & value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

uint64_t state_cost(const State & state) {
    uint64_t bytes = 0;
    for (const ByteRange & range : state.touched.ranges())
        bytes += range.size();
    return bytes;
}

constexpr uint64_t kUnitCost = 32 << 10; // of a sub-layer that reads nothing: launching takes time too

// What a unit needs on the device besides its activations.
struct UnitNeeds {
    xlm_placement wanted = XLM_PLACE_CPU;
    bool any_node = false; // a node that can run there at all
    uint64_t cost = kUnitCost;
    std::vector<Weight *> weights;
    std::vector<uint8_t> by_rows; // of weights: Root::by_rows
    std::vector<State *> states;
};

constexpr int64_t kLeastRows = 16; // of a part of a matrix: what kernels like to take at once
constexpr size_t kMaxPieces = 16;  // of a segment; well below what the ring keeps track of

class Planner {
public:
    Planner(GraphInfo & info, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits, Inner & inner,
            Cache & cache)
        : info_(info), graph_(graph), limits_(limits), inner_(inner), cache_(cache) {
        plan_.tier = tier;
        plan_.from = from;
        plan_.max_segment_cost = limits.max_segment_cost;
        plan_.experts.resize(info.experts.size());
        plan_.partial = limits.rows_node >= 0;
    }

    Plan run() {
        collect_needs();
        info_.vision ? plan_vision() : plan_step();
        count_fallbacks();
        for (Segment & segment : plan_.segments)
            if (segment.on_device) patch(segment);
        plan_.epoch = cache_.epoch(); // last: placing may have raised it
        return std::move(plan_);
    }

private:
    void plan_step() {
        take_memory();
        while (!lay_out()) {
            make_room();
            mark_nodes();
            cut_and_list();
        }
    }

    // A vision graph may fill the budget to the brim: what its cut really needs is reserved at the next try.
    void plan_vision() {
        for (int tries = 0; tries < 3; tries++) {
            device_units_.clear();
            take_memory();
            if (lay_out()) return;
            cache_.drop_vision_residents();
        }
        device_units_.assign(needs_.size(), 0);
        mark_nodes();
        cut_and_list();
    }

    void take_memory() {
        if (inner_.usable() && wants_device()) {
            place_everything();
            mark_nodes();
        }
        if (on_device_.empty()) on_device_.assign(info_.nodes.size(), 0);
        cut_and_list();
    }

    // -- what is wanted -------------------------------------------------------

    void collect_needs() {
        needs_.resize(info_.units.size());
        for (size_t u = 0; u < needs_.size(); u++) {
            const SubLayer * sublayer = info_.units[u].sublayer;
            if (sublayer && plan_.tier < sublayer->placement.size())
                needs_[u].wanted = static_cast<xlm_placement>(sublayer->placement[plan_.tier]);
            if (needs_[u].wanted != XLM_PLACE_CPU) collect_unit(u);
        }
    }

    void collect_unit(size_t u) {
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

    void collect_root(UnitNeeds & needs, int r) {
        const Root & root = info_.roots[static_cast<size_t>(r)];
        if (root.weight && std::find(needs.weights.begin(), needs.weights.end(), root.weight) == needs.weights.end()) {
            needs.weights.push_back(root.weight);
            needs.by_rows.push_back(root.by_rows);
        }
        if (root.state) add_once(needs.states, root.state);
    }

    bool wants_device() const {
        return std::any_of(needs_.begin(), needs_.end(), [](const UnitNeeds & n) { return n.any_node; });
    }

    // -- taking memory ----------------------------------------------------------

    void place_everything() {
        device_units_.resize(needs_.size());
        for (size_t u = 0; u < needs_.size(); u++)
            device_units_[u] = needs_[u].any_node;
        mark_nodes();
        // Nothing runs without scratch, so it comes before the copies; its exact size is known after the cuts.
        if (info_.vision ? !place_vision_scratch() : !cache_.place_scratch(scratch_estimate())) {
            device_units_.assign(needs_.size(), 0);
            return;
        }
        place_small_groups();
        place_residents();
        place_experts();
        place_streams();
        place_states();
    }

    uint64_t scratch_estimate() const {
        std::vector<ScratchItem> items = scratch_items(info_, on_device_);
        append_expert_items(items, [&](size_t g) { return may_go_by_expert(info_.experts[g]); });
        return plan_scratch(items, inner_.alignment()).peak_bytes;
    }

    // Where the activations of many patches do not fit, the widest parts go to the CPU. The patch embedding first:
    // it is wide and computes little; then the feed-forward parts.
    bool place_vision_scratch() {
        const std::vector<uint8_t> all = device_units_;
        for (const bool ffn : {true, false}) {
            for (const bool projector : {true, false}) {
                device_units_ = all;
                if (!ffn) shed(XLM_KIND_FFN);
                if (!projector) shed(XLM_KIND_PROJECTOR);
                mark_nodes();
                scratch_bytes_ = std::max(scratch_estimate(), ffn && projector ? exact_scratch_bytes_ : 0);
                if (scratch_bytes_ > cache_.budget_bytes()) continue;
                cache_.give_way(vision_need_bytes(), limits_.vision_bound_bytes);
                if (cache_.place_scratch(scratch_bytes_)) return true;
            }
        }
        return false;
    }

    void shed(xlm_sublayer_kind kind) {
        for (size_t u = 0; u < needs_.size(); u++)
            if (info_.units[u].sublayer && info_.units[u].sublayer->kind == kind) device_units_[u] = 0;
    }

    uint64_t vision_need_bytes() const {
        std::vector<const SubLayer *> wanted;
        for (size_t u = 0; u < needs_.size(); u++)
            for (const Weight * weight : needs_[u].weights)
                if (device_units_[u]) add_once(wanted, static_cast<const SubLayer *>(weight->sublayer));
        uint64_t bytes = scratch_bytes_;
        for (const SubLayer * sublayer : wanted)
            bytes += sublayer->device_bytes;
        return bytes;
    }

    // What resident copies must leave free.
    uint64_t reserve_bytes() const {
        return info_.vision ? scratch_bytes_ + limits_.ring_bytes : limits_.reserve_bytes;
    }

    template <typename Keep>
    void keep_units(Keep keep) {
        for (size_t u = 0; u < needs_.size(); u++)
            if (device_units_[u] && !keep(needs_[u])) device_units_[u] = 0;
    }

    void place_small_groups() {
        keep_units([&](const UnitNeeds & needs) {
            for (Weight * weight : needs.weights)
                if (weight->sublayer->kind == XLM_KIND_SMALL && !cache_.place_resident(*weight->sublayer, 0))
                    return false;
            return true;
        });
    }

    // In order of priority, not of the graph: what fits first should be what matters most.
    void place_residents() {
        std::vector<SubLayer *> order;
        for (size_t u = 0; u < needs_.size(); u++)
            if (device_units_[u] && needs_[u].wanted == XLM_PLACE_RESIDENT) add_once(order, info_.units[u].sublayer);
        std::stable_sort(order.begin(), order.end(),
                         [](const SubLayer * a, const SubLayer * b) { return a->rank < b->rank; });
        for (SubLayer * sublayer : order)
            cache_.place_resident(*sublayer, reserve_bytes());
    }

    // -- experts, one by one

    bool may_go_by_expert(const ExpertGroup & group) const {
        const size_t u = static_cast<size_t>(group.unit);
        return device_units_[u] && needs_[u].wanted != XLM_PLACE_CPU && plan_.from <= group.first;
    }

    // Slots and, where a step may need more experts than there are slots, the window.
    void place_experts() {
        for (size_t g = 0; g < info_.experts.size(); g++) {
            const ExpertGroup & group = info_.experts[g];
            if (!may_go_by_expert(group) || group.sublayer->copy) continue;
            if (group.sublayer->experts->policy.n_slots > 0) cache_.place_slots(*group.sublayer, limits_.reserve_bytes);
            plan_.experts[g].by_expert =
                slots_suffice(group) ||
                cache_.place_window(limits_.window_bytes, largest_expert_bytes(*group.sublayer));
            if (plan_.experts[g].by_expert) by_expert_.insert(group.sublayer);
        }
        settle_experts();
    }

    // No step of this graph can need more experts than there are slots.
    static bool slots_suffice(const ExpertGroup & group) {
        const uint32_t n_slots = group.sublayer->experts->map.n_slots();
        return n_slots >= group.n_used && n_slots >= std::min(group.n_pairs(), group.sublayer->experts->n_experts);
    }

    // Slots that were dropped to make room may have been all there was.
    void keep_experts_with_place() {
        for (size_t g = 0; g < info_.experts.size(); g++) {
            const ExpertGroup & group = info_.experts[g];
            const bool window = cache_.window.experts_per_part(largest_expert_bytes(*group.sublayer)) > 0;
            if (plan_.experts[g].by_expert && !window && !slots_suffice(group))
                device_units_[static_cast<size_t>(group.unit)] = 0;
        }
    }

    // All units of a sub-layer go the same way; its weights need no other place then.
    void settle_experts() {
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

    void leave_out_experts(UnitNeeds & needs) const {
        size_t kept = 0;
        for (size_t w = 0; w < needs.weights.size(); w++) {
            if (by_expert_.count(needs.weights[w]->sublayer)) continue;
            needs.weights[kept] = needs.weights[w];
            needs.by_rows[kept++] = needs.by_rows[w];
        }
        needs.weights.resize(kept);
        needs.by_rows.resize(kept);
    }

    bool unit_goes_by_expert(size_t u) const {
        for (size_t g = 0; g < info_.experts.size(); g++)
            if (info_.experts[g].unit == static_cast<int>(u)) return plan_.experts[g].by_expert;
        return false;
    }

    void note_expert_mode(size_t u) {
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

    template <typename Wanted>
    void append_expert_items(std::vector<ScratchItem> & items, Wanted wanted) const {
        for (size_t g = 0; g < info_.experts.size(); g++) {
            const ExpertGroup & group = info_.experts[g];
            items.emplace_back();
            if (wanted(g)) items.back() = {expert_scratch(group).bytes, group.first, group.last + kFusionReach};
        }
    }

    // The group whose core begins at node i and is handled by expert; -1: none.
    int group_at(int i) const {
        for (size_t g = 0; g < info_.experts.size(); g++)
            if (info_.experts[g].first == i && plan_.experts[g].by_expert &&
                device_units_[static_cast<size_t>(info_.experts[g].unit)])
                return static_cast<int>(g);
        return -1;
    }

    bool streams(const Weight * weight) const { return !weight->sublayer->copy && !by_expert_.count(weight->sublayer); }

    // Device memory of some rows of a matrix.
    uint64_t bytes_of_rows(const Weight & weight, int64_t n_rows) const {
        ggml_tensor part = weight.shadow;
        part.ne[1] = n_rows;
        part.nb[2] = part.nb[3] = static_cast<size_t>(n_rows) * part.nb[1];
        return inner_.alloc_bytes(&part);
    }

    // Rows that go through a ring of that size at once; 0: the weight goes as a whole.
    int64_t rows_at_once(const Weight & weight, bool by_rows, uint64_t ring_bytes) const {
        if (!by_rows || weight.device_bytes <= ring_bytes / 2) return 0;
        const uint64_t least_bytes = bytes_of_rows(weight, kLeastRows);
        const uint64_t parts = std::max<uint64_t>(1, ring_bytes / 4 / least_bytes);
        return static_cast<int64_t>(parts) * kLeastRows;
    }

    uint64_t least_piece_bytes(const Weight & weight, bool by_rows) const {
        return by_rows ? std::min(weight.device_bytes, bytes_of_rows(weight, kLeastRows)) : weight.device_bytes;
    }

    void place_streams() {
        uint64_t largest = 0;
        for (size_t u = 0; u < needs_.size(); u++) {
            const UnitNeeds & needs = needs_[u];
            for (size_t w = 0; device_units_[u] && w < needs.weights.size(); w++) {
                const uint64_t bytes = least_piece_bytes(*needs.weights[w], needs.by_rows[w]);
                if (streams(needs.weights[w]) && bytes <= limits_.ring_bytes) largest = std::max(largest, bytes);
            }
        }
        if (largest > 0) cache_.place_ring(limits_.ring_bytes, largest);
        keep_copied_or_streamed();
    }

    void keep_copied_or_streamed() {
        const uint64_t capacity = cache_.ring.present() ? cache_.ring.capacity_bytes() : 0;
        keep_units([&](const UnitNeeds & needs) {
            for (size_t w = 0; w < needs.weights.size(); w++)
                if (streams(needs.weights[w]) && least_piece_bytes(*needs.weights[w], needs.by_rows[w]) > capacity)
                    return false;
            return true;
        });
    }

    void place_states() {
        keep_units([&](const UnitNeeds & needs) {
            return std::all_of(needs.states.begin(), needs.states.end(),
                               [&](State * state) { return cache_.place_state(*state, reserve_bytes()); });
        });
    }

    // The cuts take more scratch than the reserve foresaw: one copy less, or nothing on the device at all.
    void make_room() {
        if (!cache_.drop_least()) return device_units_.assign(needs_.size(), 0);
        keep_copied_or_streamed();
        keep_experts_with_place();
    }

    void mark_nodes() {
        on_device_.assign(info_.nodes.size(), 0);
        for (size_t i = static_cast<size_t>(plan_.from); i < info_.nodes.size(); i++) {
            const Node & node = info_.nodes[i];
            on_device_[i] = !node.view && !node.cpu_only && device_units_[static_cast<size_t>(node.owner)];
        }
    }

    void count_fallbacks() {
        for (size_t u = 0; u < needs_.size(); u++)
            if (needs_[u].any_node && info_.units[u].last >= plan_.from && (device_units_.empty() || !device_units_[u]))
                plan_.n_fallback++;
    }

    // -- cutting ---------------------------------------------------------------

    void cut() {
        const uint32_t max_units = std::max(1U, limits_.max_units_in_flight / 2);
        int unit = -1;
        for (int i = plan_.from; i < static_cast<int>(info_.nodes.size()); i++) {
            const Node & node = info_.nodes[static_cast<size_t>(i)];
            if (plan_.segments.empty()) open(i);
            if (on_device_[static_cast<size_t>(i)] && open_by_rows(i)) {
                unit = node.owner;
                continue;
            }
            Segment * segment = &plan_.segments.back();
            if (segment->by_rows && !node.view) {
                segment = &open(i);
                segment->on_device = on_device_[static_cast<size_t>(i)];
            }
            if (!node.view && segment->on_device != static_cast<bool>(on_device_[static_cast<size_t>(i)])) {
                if (seen_work_) segment = &open(i);
                segment->on_device = on_device_[static_cast<size_t>(i)];
            } else if (segment->on_device && node.owner != unit && seen_work_) {
                const bool full = segment->n_units >= max_units ||
                                  open_cost_ + needs_[static_cast<size_t>(node.owner)].cost > limits_.max_segment_cost;
                if (full || streams(node.owner) || streams(unit))
                    segment = &open(i), segment->on_device = true;
                else
                    segment->n_units++;
            }
            if (const int group = device_units_.empty() ? -1 : group_at(i); group >= 0) {
                if (i > segment->first) segment = &open(i);
                segment->on_device = true;
                segment->experts = group;
            }
            if (!node.view && segment->on_device && seen_work_ && (node.tiled || segment->tiled))
                segment = &open(i), segment->on_device = true;
            if (!node.view) segment->tiled = segment->on_device && node.tiled;
            if (!node.view) seen_work_ = true;
            if (node.owner != unit || open_cost_ == 0) open_cost_ += needs_[static_cast<size_t>(node.owner)].cost;
            if (on_device_[static_cast<size_t>(i)]) add_pieces(i);
            plan_.segments.back().last = i;
            unit = node.owner;
        }
    }

    Segment & open(int first) {
        plan_.segments.emplace_back();
        plan_.segments.back().first = first;
        piece_bytes_ = open_cost_ = 0;
        seen_work_ = false;
        return plan_.segments.back();
    }

    bool streams(int unit) const {
        if (unit < 0 || device_units_.empty() || !device_units_[static_cast<size_t>(unit)]) return false;
        const auto & weights = needs_[static_cast<size_t>(unit)].weights;
        return std::any_of(weights.begin(), weights.end(), [&](const Weight * weight) { return streams(weight); });
    }

    // A matrix too large for the ring: its node is a segment of its own, computed in parts.
    bool open_by_rows(int i) {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        for (uint32_t s = 0; s < node.n_sources; s++) {
            const Root & root = info_.roots[static_cast<size_t>(info_.sources[node.first_source + s])];
            if (!root.weight || !streams(root.weight)) continue;
            const int64_t at_once = rows_at_once(*root.weight, root.by_rows, cache_.ring.capacity_bytes());
            if (at_once == 0) continue;
            Segment & segment = seen_work_ ? open(i) : plan_.segments.back();
            segment.on_device = segment.by_rows = seen_work_ = true;
            segment.last = i;
            list_rows(segment, *root.weight, at_once, i == limits_.rows_node ? limits_.rows_done : 0);
            return true;
        }
        return false;
    }

    void list_rows(Segment & segment, Weight & weight, int64_t at_once, int64_t first_row) const {
        const int64_t n_rows = weight.tensor->ne[1];
        for (int64_t row = first_row; row < n_rows; row += at_once) {
            const int64_t n = std::min(at_once, n_rows - row);
            segment.pieces.push_back({&weight, row, n, bytes_of_rows(weight, n)});
        }
    }

    // Streamed weights of a node that the open segment does not have yet.
    std::vector<Streamed> new_pieces(const Node & node) const {
        const std::vector<Streamed> & have = plan_.segments.back().pieces;
        std::vector<Streamed> result;
        for (uint32_t s = 0; s < node.n_sources; s++) {
            Weight * weight = info_.roots[static_cast<size_t>(info_.sources[node.first_source + s])].weight;
            if (!weight || !streams(weight)) continue;
            const Streamed piece{weight, 0, 0, weight->device_bytes};
            if (std::find(have.begin(), have.end(), piece) == have.end()) add_once(result, piece);
        }
        return result;
    }

    // Pieces of a segment stay in the ring until it is submitted: a segment takes at most a
    // quarter of it, so that the next ones can be uploaded meanwhile.
    void add_pieces(int i) {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        std::vector<Streamed> pieces = new_pieces(node);
        if (pieces.empty()) return;
        uint64_t bytes = 0;
        for (const Streamed & piece : pieces)
            bytes += piece.bytes;
        const Segment & open_segment = plan_.segments.back();
        const bool full =
            piece_bytes_ + bytes > cache_.ring.capacity_bytes() / 4 || open_segment.pieces.size() >= kMaxPieces;
        if (!open_segment.pieces.empty() && full && i > open_segment.first) {
            open(i).on_device = true;
            seen_work_ = true;
            pieces = new_pieces(node);
        }
        for (const Streamed & piece : pieces) {
            plan_.segments.back().pieces.push_back(piece);
            piece_bytes_ += piece.bytes;
        }
    }

    // -- filling -----------------------------------------------------------------

    void cut_and_list() {
        plan_.segments.clear();
        seen_work_ = false;
        cut();
        for (Segment & segment : plan_.segments) {
            list_writes(segment);
            if (segment.on_device) list_needs(segment);
        }
    }

    void list_needs(Segment & segment) {
        plan_.uses_device = true;
        weights_.clear();
        for (int i = segment.first; i <= segment.last; i++) {
            const Node & entry = info_.nodes[static_cast<size_t>(i)];
            if (entry.view) continue;
            for (uint32_t s = 0; s < entry.n_sources; s++)
                note_need(segment, info_.sources[entry.first_source + s], i);
            if (entry.partial) note_need(segment, entry.root, i);
        }
        segment.cost = kUnitCost * segment.n_units;
        for (const Weight * weight : weights_)
            segment.cost += weight->device_bytes;
        for (const State * state : segment.states)
            segment.cost += state_cost(*state);
        plan_.stream_order.insert(plan_.stream_order.end(), segment.pieces.begin(), segment.pieces.end());
    }

    // What a segment needs is uploaded before its first node runs, so its place is taken from there on.
    bool lay_out() {
        if (!plan_.uses_device) return true;
        std::vector<ScratchItem> items = scratch_items(info_, on_device_);
        for (const Segment & segment : plan_.segments)
            for (int r : segment.needs)
                items[static_cast<size_t>(r)].first = std::min(items[static_cast<size_t>(r)].first, segment.first);
        append_expert_items(items, [&](size_t g) { return group_at(info_.experts[g].first) >= 0; });
        const ScratchLayout layout = plan_scratch(items, inner_.alignment());
        exact_scratch_bytes_ = layout.peak_bytes;
        if (!cache_.place_scratch(layout.peak_bytes)) {
            plan_.uses_device = false;
            plan_.stream_order.clear();
            return false;
        }
        make_shadows(items, layout);
        place_slot_ids(layout);
        return true;
    }

    void list_writes(Segment & segment) {
        for (int i = segment.first; i <= segment.last; i++) {
            const Node & node = info_.nodes[static_cast<size_t>(i)];
            if (node.root >= 0 && info_.roots[static_cast<size_t>(node.root)].cls == RootClass::activation)
                add_once(segment.writes, node.root);
        }
        for (size_t w = 0; w < info_.state_writes.size(); w++)
            if (info_.state_writes[w].node >= segment.first && info_.state_writes[w].node <= segment.last)
                segment.state_writes.push_back(static_cast<int>(w));
    }

    void make_shadows(const std::vector<ScratchItem> & items, const ScratchLayout & layout) {
        plan_.shadows.resize(info_.roots.size());
        for (size_t r = 0; r < info_.roots.size(); r++) {
            if (items[r].first < 0) continue;
            ggml_tensor & shadow = plan_.shadows[r] = *info_.roots[r].tensor;
            shadow.buffer = cache_.scratch().get();
            shadow.data = cache_.scratch().base() + layout.offsets[r];
            shadow.extra = nullptr;
        }
    }

    void place_slot_ids(const ScratchLayout & layout) {
        for (size_t g = 0; g < info_.experts.size(); g++) {
            const ExpertGroup & group = info_.experts[g];
            ExpertPlace & place = plan_.experts[g];
            place.offset = layout.offsets[info_.roots.size() + g];
            place.slot_ids = *group.ids;
            ggml_tensor & ids = place.slot_ids;
            ids.op = GGML_OP_NONE;
            ids.view_src = nullptr;
            ids.view_offs = 0;
            std::fill(std::begin(ids.src), std::end(ids.src), nullptr);
            ids.nb[1] = ids.nb[0] * group.n_used;
            ids.nb[2] = ids.nb[3] = ids.nb[1] * group.n_tokens;
            ids.buffer = cache_.scratch().get();
            ids.data = cache_.scratch().base() + place.offset + expert_scratch(group).slot_ids;
        }
    }

    bool placed(int r) const { return plan_.shadows[static_cast<size_t>(r)].data != nullptr; }

    void patch(Segment & segment) {
        patched_.clear();
        for (int i = segment.first; i <= segment.last; i++) {
            ggml_tensor * node = graph_.nodes[i];
            patch_self(segment, node);
            // A view computes nothing, and what it views may have no place on the device now.
            if (info_.nodes[static_cast<size_t>(i)].view) continue;
            const ExpertMatmul * matmul = expert_matmul(segment, i);
            for (ggml_tensor *& slot : node->src)
                if (slot && !(matmul && patch_expert_source(segment, *matmul, slot))) patch_source(segment, slot);
        }
    }

    const ExpertMatmul * expert_matmul(const Segment & segment, int i) const {
        if (segment.experts < 0) return nullptr;
        for (const ExpertMatmul & matmul : info_.experts[static_cast<size_t>(segment.experts)].matmuls)
            if (matmul.node == i) return &matmul;
        return nullptr;
    }

    // The matrix becomes that of the slots, the ids those of slots: one tensor for all, as fused kernels expect.
    // Without slots the node itself is never submitted.
    bool patch_expert_source(Segment & segment, const ExpertMatmul & matmul, ggml_tensor *& slot) {
        const ExpertGroup & group = info_.experts[static_cast<size_t>(segment.experts)];
        ExpertState & state = *group.sublayer->experts;
        const bool matrix = slot == matmul.weight->tensor;
        if (!matrix && slot != group.ids) return false;
        if (matrix && !state.slots) return true;
        ggml_tensor * slot_ids = &plan_.experts[static_cast<size_t>(segment.experts)].slot_ids;
        segment.sources.push_back({&slot, matrix ? &state.compact[matmul.index] : slot_ids});
        return true;
    }

    void note_need(Segment & segment, int r, int i) {
        const Root & root = info_.roots[static_cast<size_t>(r)];
        if (root.state) add_once(segment.states, root.state);
        if (root.weight) add_once<const Weight *>(weights_, root.weight);
        if (root.weight && root.weight->sublayer->copy) add_once(segment.residents, root.weight->sublayer);
        const bool made_here = root.producer >= segment.first && root.producer < i;
        if (root.cls == RootClass::activation && !root.hosted && !made_here) add_once(segment.needs, r);
    }

    void patch_source(Segment & segment, ggml_tensor *& slot) {
        const Root & root = root_of(slot);
        ggml_tensor * shadow = root.weight ? &root.weight->shadow : root.state ? &root.state->shadow : nullptr;
        if (shadow && !slot->view_src)
            segment.sources.push_back({&slot, shadow});
        else if (root.weight)
            segment.sources.push_back({&slot, view_of_weight(segment, slot, shadow)});
        else
            patch_self(segment, slot);
    }

    // A view of a weight may be shared by graphs too (made when the model was loaded).
    ggml_tensor * view_of_weight(Segment & segment, const ggml_tensor * view, ggml_tensor * shadow) {
        plan_.view_shadows.push_back(*view);
        ggml_tensor * copy = &plan_.view_shadows.back();
        segment.data.push_back({copy, shadow, view->view_offs, true});
        return copy;
    }

    void patch_self(Segment & segment, ggml_tensor * tensor) {
        const Root & root = root_of(tensor);
        if (root.state && tensor->view_src && patched_.insert(tensor).second)
            segment.data.push_back({tensor, &root.state->shadow, tensor->view_offs, true});
        if (root.cls != RootClass::activation) return;
        const size_t r = static_cast<size_t>(&root - info_.roots.data());
        if (!placed(static_cast<int>(r)) || !patched_.insert(tensor).second) return;
        segment.data.push_back({tensor, &plan_.shadows[r], tensor->view_src ? tensor->view_offs : 0, false});
    }

    const Root & root_of(const ggml_tensor * tensor) {
        if (root_index_.empty())
            for (size_t r = 0; r < info_.roots.size(); r++)
                root_index_[info_.roots[r].tensor] = r;
        return info_.roots[root_index_.at(tensor->view_src ? tensor->view_src : tensor)];
    }

    GraphInfo & info_;
    ggml_cgraph & graph_;
    const PlanLimits & limits_;
    Inner & inner_;
    Cache & cache_;
    Plan plan_;
    std::vector<UnitNeeds> needs_;
    std::vector<uint8_t> device_units_, on_device_;
    uint64_t piece_bytes_ = 0, open_cost_ = 0;
    uint64_t scratch_bytes_ = 0, exact_scratch_bytes_ = 0; // of a vision graph
    bool seen_work_ = false;                               // the open segment has a node that does something
    std::unordered_map<const ggml_tensor *, size_t> root_index_;
    std::unordered_set<const ggml_tensor *> patched_;
    std::vector<const Weight *> weights_; // of the segment being listed
    std::unordered_set<const SubLayer *> by_expert_;
};

} // namespace

Plan make_plan(GraphInfo & info, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits, Inner & inner,
               Cache & cache) {
    return Planner(info, graph, tier, from, limits, inner, cache).run();
}

} // namespace xlm
