// Makes a plan (plan.hpp): what is wanted and where it finds place, how the graph is cut into segments, which
// pointers are swapped. One object a plan; one file for each of these.
#pragma once

#include "experts_graph.hpp"
#include "plan.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace xlm {

template <typename T>
void add_once(std::vector<T> & list, const T & value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

inline uint64_t state_cost(const State & state) {
    uint64_t bytes = 0;
    for (const ByteRange & range : state.touched.ranges())
        bytes += range.size();
    return bytes;
}

constexpr uint64_t kUnitCost = 32 << 10; // of a sub-layer that reads nothing: launching takes time too

// Caches of a unit that go through the ring, and the nodes that use them.
struct KvStream {
    std::vector<State *> states;
    uint64_t bytes = 0;
    int first = -1, last = -1;
};

// What a unit needs on the device besides its activations.
struct UnitNeeds {
    xlm_placement wanted = XLM_PLACE_CPU;
    bool any_node = false; // a node that can run there at all
    uint64_t cost = kUnitCost;
    std::vector<Weight *> weights;
    std::vector<uint8_t> by_rows; // of weights: Root::by_rows
    std::vector<State *> states;
    KvStream kv; // part of states
};

class Planner {
public:
    Planner(GraphInfo & info, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits, Inner & inner,
            Cache & cache);
    Plan run();

private:
    void plan_step();
    void plan_vision();
    void take_memory();
    void collect_needs();
    void collect_unit(size_t u);
    void collect_root(UnitNeeds & needs, int r);
    bool wants_device() const;
    void make_room();
    void mark_nodes();
    void count_fallbacks();
    void note_again(); // plan_again.cpp

    // -- what finds place on the device: plan_place.cpp
    void place_everything();
    void take_back();
    uint64_t scratch_estimate() const;
    ScratchLayout layout_of(const std::vector<ScratchItem> & items) const;
    bool place_vision_scratch();
    bool try_vision_scratch(int64_t patches, bool whole, bool beside_weights);
    uint64_t least_weight_bytes() const;
    void shed(xlm_sublayer_kind kind);
    uint64_t vision_need_bytes() const;
    void note_image() const;
    uint64_t reserve_bytes() const;
    template <typename Keep>
    void keep_units(Keep keep) {
        for (size_t u = 0; u < needs_.size(); u++)
            if (device_units_[u] && !keep(needs_[u])) device_units_[u] = 0;
    }
    void place_small_groups();
    void place_residents();
    bool streams(const Weight * weight) const { return !weight->sublayer->copy && !by_expert_.count(weight->sublayer); }
    uint64_t bytes_of_rows(const Weight & weight, int64_t n_rows) const;
    int64_t rows_at_once(const Weight & weight, bool by_rows, uint64_t ring_bytes) const;
    uint64_t least_piece_bytes(const Weight & weight, bool by_rows) const;
    void place_streams();
    void share_out_ring();
    template <typename Visit>
    void each_streamed_weight(Visit visit) const {
        for (size_t u = 0; u < needs_.size(); u++)
            for (size_t w = 0; device_units_[u] && w < needs_[u].weights.size(); w++)
                if (streams(needs_[u].weights[w])) visit(*needs_[u].weights[w], needs_[u].by_rows[w] != 0);
    }
    uint64_t largest_whole_weight(uint64_t ring_bytes) const;
    uint64_t weight_room() const { return cache_.ring.capacity_bytes() - plan_.ring_cache_bytes; }
    void keep_copied_or_streamed();
    void place_states();

    // -- caches that are streamed: plan_kv.cpp
    using StateUsers = std::unordered_map<const State *, int>;
    void find_kv_streams();
    StateUsers users_of_states() const;
    KvStream kv_stream_of(size_t u, const StateUsers & users) const;
    void find_span(size_t u, KvStream & kv) const;
    bool span_is_whole(const KvStream & kv) const;
    const KvStream * kv_at(int i) const;

    // -- experts, one by one: plan_experts.cpp
    bool may_go_by_expert(const ExpertGroup & group) const;
    void place_experts();
    static bool slots_suffice(const ExpertGroup & group);
    void keep_experts_with_place();
    void settle_experts();
    void leave_out_experts(UnitNeeds & needs) const;
    bool unit_goes_by_expert(size_t u) const;
    void note_expert_mode(size_t u);
    template <typename Wanted>
    void append_expert_items(std::vector<ScratchItem> & items, Wanted wanted) const {
        for (size_t g = 0; g < info_.experts.size(); g++) {
            const ExpertGroup & group = info_.experts[g];
            items.emplace_back();
            if (wanted(g)) items.back() = {expert_scratch(group).bytes, group.first, group.last + kFusionReach};
        }
    }
    int group_at(int i) const;

    // -- segments: plan_cut.cpp
    void cut();
    bool ends_before_output(int next_unit) const;
    Segment & open(int first);
    bool streams(int unit) const;
    bool open_by_rows(int i);
    int64_t rows_in_time(int i, const Root & root) const;
    void list_rows(Segment & segment, Weight & weight, int64_t at_once, int64_t first_row) const;
    std::vector<Streamed> new_pieces(const Node & node) const;
    int reads_weights_for(int i) const;
    void add_pieces(int i);
    void cut_and_list();
    void list_needs(Segment & segment);
    uint64_t patch_work(const Segment & segment) const;
    void list_writes(Segment & segment);
    void note_need(Segment & segment, int r, int i);

    // -- where things lie, and who is told: plan_patch.cpp
    bool lay_out();
    std::vector<PatchSpan> segment_spans() const;
    void place_tiles(const ScratchLayout & layout);
    void make_shadows(const std::vector<ScratchItem> & items, const ScratchLayout & layout);
    void make_shadow(size_t r, uint64_t offset);
    void place_slot_ids(const ScratchLayout & layout);
    bool placed(int r) const { return plan_.shadows[static_cast<size_t>(r)].data != nullptr; }
    void patch(Segment & segment);
    const ExpertMatmul * expert_matmul(const Segment & segment, int i) const;
    bool patch_expert_source(Segment & segment, const ExpertMatmul & matmul, ggml_tensor *& slot);
    void patch_source(Segment & segment, ggml_tensor *& slot);
    ggml_tensor * view_of_weight(Segment & segment, const ggml_tensor * view, ggml_tensor * shadow);
    void patch_self(Segment & segment, ggml_tensor * tensor);
    const Root & root_of(const ggml_tensor * tensor);

    GraphInfo & info_;
    ggml_cgraph & graph_;
    const PlanLimits & limits_;
    Inner & inner_;
    Cache & cache_;
    Plan plan_;
    std::vector<UnitNeeds> needs_;
    std::vector<uint8_t> device_units_, on_device_;
    uint64_t piece_bytes_ = 0, open_cost_ = 0;
    uint64_t segment_bytes_ = 0;                      // of weights in the ring
    uint64_t scratch_bytes_ = 0;                      // of a vision graph
    std::map<int64_t, uint64_t> exact_scratch_bytes_; // by patches of a tile, where a layout did not fit
    int last_work_ = 0;                               // of the open segment: its last node that does something
    bool seen_work_ = false;                          // the open segment has a node that does something
    std::unordered_map<const ggml_tensor *, size_t> root_index_;
    std::unordered_set<const ggml_tensor *> patched_;
    std::vector<const Weight *> weights_; // of the segment being listed
    std::unordered_set<const SubLayer *> by_expert_;
    std::unordered_set<const State *> kv_streamed_;
};

} // namespace xlm
