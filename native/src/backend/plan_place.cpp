// What of a graph finds place on the device: copies, the ring for what is streamed, states, scratch.
#include "planner.hpp"

#include <utility>

namespace xlm {

namespace {

constexpr uint64_t kCachePlaces = 2;
constexpr int64_t kLeastRows = 16; // of a part of a matrix: what kernels like to take at once

} // namespace

void Planner::place_everything() {
    device_units_.resize(needs_.size());
    for (size_t u = 0; u < needs_.size(); u++)
        device_units_[u] = needs_[u].any_node;
    mark_nodes();
    if (limits_.lends) take_back();
    // Nothing runs without scratch, so it comes before the copies; its exact size is known after the cuts.
    if (info_.vision ? !place_vision_scratch() : !cache_.place_scratch(scratch_estimate())) {
        device_units_.assign(needs_.size(), 0);
        return;
    }
    place_small_groups();
    place_residents();
    place_experts();
    find_kv_streams();
    place_streams();
    place_states();
}

// What was lent to copies of other tiers; and scratch of longer steps, whose room is lent now.
void Planner::take_back() {
    cache_.take_back(limits_.reserve_bytes, plan_.tier);
    const uint64_t held = cache_.scratch().bytes();
    if (held > limits_.scratch_share_bytes && held > scratch_estimate()) cache_.drop_scratch();
}

ScratchLayout Planner::layout_of(const std::vector<ScratchItem> & items) const {
    return plan_scratch(items, inner_.alignment());
}

uint64_t Planner::scratch_estimate() const {
    std::vector<ScratchItem> items = scratch_items(info_, on_device_);
    append_expert_items(items, [&](size_t g) { return may_go_by_expert(info_.experts[g]); });
    if (info_.vision)
        fit_to_spans(info_, vision_spans(info_, on_device_, plan_.from), plan_.tile_patches, items);
    else
        pack_inputs(info_, on_device_, items);
    return layout_of(items).peak_bytes;
}

// Where the activations do not fit, tiles have fewer patches; then, and where the sub-layers are not cut into
// tiles, the widest parts go to the CPU. The patch embedding first: it is wide and computes little.
bool Planner::place_vision_scratch() {
    if (cache_.budget_bytes() == 0) return false;
    const std::vector<uint8_t> all = device_units_;
    for (const bool beside_weights : {true, false}) {
        device_units_ = all;
        if (try_vision_scratch(kAllPatches, true, beside_weights)) return true;
        for (const bool ffn : {true, false}) {
            for (const bool projector : {true, false}) {
                for (const int64_t patches : kTilePatches) {
                    device_units_ = all;
                    if (!ffn) shed(XLM_KIND_FFN);
                    if (!projector) shed(XLM_KIND_PROJECTOR);
                    if (try_vision_scratch(patches, ffn && projector, beside_weights)) return true;
                    if (info_.runs.empty()) break;
                }
            }
        }
    }
    return false;
}

bool Planner::try_vision_scratch(int64_t patches, bool whole, bool beside_weights) {
    mark_nodes();
    plan_.tile_patches = patches;
    scratch_bytes_ = std::max(scratch_estimate(), whole ? exact_scratch_bytes_[patches] : 0);
    const uint64_t need_bytes = vision_need_bytes();
    if (patches == kAllPatches && need_bytes > limits_.vision_bound_bytes) return false;
    const uint64_t least =
        beside_weights ? std::min(need_bytes, scratch_bytes_ + least_weight_bytes()) : scratch_bytes_;
    if (least > cache_.budget_bytes()) return false;
    cache_.give_way(need_bytes, limits_.vision_bound_bytes);
    if (cache_.place_scratch(scratch_bytes_)) return true;
    if (!std::exchange(cache_.ahead_of_image, false)) return false;
    cache_.drop_vision_residents(); // another image than the last one
    return cache_.place_scratch(scratch_bytes_);
}

// For the next image.
void Planner::note_image() const {
    bool whole = plan_.from == 0 && plan_.uses_device && !device_units_.empty();
    for (size_t u = 0; whole && u < needs_.size(); u++)
        whole = !needs_[u].any_node || (device_units_[u] && needs_[u].wanted == XLM_PLACE_RESIDENT);
    cache_.last_image = {plan_.tier, whole ? vision_need_bytes() : 0, cache_.scratch().bytes()};
}

// What streaming takes: the ring and the small tensors.
uint64_t Planner::least_weight_bytes() const {
    std::vector<const SubLayer *> small;
    for (size_t u = 0; u < needs_.size(); u++)
        for (const Weight * weight : needs_[u].weights)
            if (device_units_[u] && weight->sublayer->kind == XLM_KIND_SMALL)
                add_once(small, static_cast<const SubLayer *>(weight->sublayer));
    uint64_t bytes = limits_.ring_bytes;
    for (const SubLayer * sublayer : small)
        bytes += sublayer->device_bytes;
    return bytes;
}

void Planner::shed(xlm_sublayer_kind kind) {
    for (size_t u = 0; u < needs_.size(); u++)
        if (info_.units[u].sublayer && info_.units[u].sublayer->kind == kind) device_units_[u] = 0;
}

uint64_t Planner::vision_need_bytes() const {
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
uint64_t Planner::reserve_bytes() const {
    return info_.vision ? scratch_bytes_ + limits_.ring_bytes : limits_.reserve_bytes;
}

void Planner::place_small_groups() {
    keep_units([&](const UnitNeeds & needs) {
        for (Weight * weight : needs.weights)
            if (weight->sublayer->kind == XLM_KIND_SMALL && !cache_.place_resident(*weight->sublayer, 0)) return false;
        return true;
    });
}

// In order of priority, not of the graph: what fits first should be what matters most.
void Planner::place_residents() {
    std::vector<SubLayer *> order;
    for (size_t u = 0; u < needs_.size(); u++)
        if (device_units_[u] && needs_[u].wanted == XLM_PLACE_RESIDENT) add_once(order, info_.units[u].sublayer);
    std::stable_sort(order.begin(), order.end(),
                     [](const SubLayer * a, const SubLayer * b) { return a->rank < b->rank; });
    for (SubLayer * sublayer : order)
        cache_.place_resident(*sublayer, reserve_bytes());
}

// Device memory of some rows of a matrix.
uint64_t Planner::bytes_of_rows(const Weight & weight, int64_t n_rows) const {
    ggml_tensor part = weight.shadow;
    part.ne[1] = n_rows;
    part.nb[2] = part.nb[3] = static_cast<size_t>(n_rows) * part.nb[1];
    return inner_.alloc_bytes(&part);
}

// Rows that go through a ring of that size at once; 0: the weight goes as a whole.
int64_t Planner::rows_at_once(const Weight & weight, bool by_rows, uint64_t ring_bytes) const {
    if (!by_rows || weight.device_bytes <= ring_bytes / 2) return 0;
    const uint64_t least_bytes = bytes_of_rows(weight, kLeastRows);
    const uint64_t parts = std::max<uint64_t>(1, ring_bytes / 4 / least_bytes);
    return static_cast<int64_t>(parts) * kLeastRows;
}

uint64_t Planner::least_piece_bytes(const Weight & weight, bool by_rows) const {
    return by_rows ? std::min(weight.device_bytes, bytes_of_rows(weight, kLeastRows)) : weight.device_bytes;
}

void Planner::place_streams() {
    uint64_t largest = 0;
    each_streamed_weight([&](const Weight & weight, bool by_rows) {
        const uint64_t bytes = least_piece_bytes(weight, by_rows);
        if (bytes <= limits_.ring_bytes) largest = std::max(largest, bytes);
    });
    for (size_t u = 0; u < needs_.size(); u++)
        if (device_units_[u] && needs_[u].kv.bytes <= limits_.ring_bytes)
            largest = std::max(largest, needs_[u].kv.bytes);
    if (largest > 0) cache_.place_ring(limits_.ring_bytes, largest);
    keep_copied_or_streamed();
}

// Of what goes through the ring as a whole; the parts of other matrices follow from its size.
uint64_t Planner::largest_whole_weight(uint64_t ring_bytes) const {
    uint64_t largest = 0;
    each_streamed_weight([&](const Weight & weight, bool by_rows) {
        const bool whole = rows_at_once(weight, by_rows, ring_bytes) == 0;
        largest = std::max(largest, whole ? weight.device_bytes : bytes_of_rows(weight, kLeastRows));
    });
    return largest;
}

// Places for two caches, one to compute with and one on its way, or for one, if that leaves two pieces of weights.
// Pieces of a segment stay in the ring until it is submitted: a segment takes at most a quarter of their part, so that
// the next ones can be uploaded meanwhile, or as much as the largest matrix.
void Planner::share_out_ring() {
    uint64_t largest = 0, places = 0;
    for (size_t u = 0; u < needs_.size(); u++) {
        if (!device_units_[u] || needs_[u].kv.bytes == 0) continue;
        const uint64_t alignment = inner_.alignment();
        largest = std::max(largest, (needs_[u].kv.bytes + alignment - 1) / alignment * alignment);
        places = std::min(places + 1, kCachePlaces);
    }
    const uint64_t capacity = cache_.ring.capacity_bytes(), weight = largest_whole_weight(capacity);
    while (places > 0 && places * largest + 2 * weight > capacity)
        places--;
    plan_.ring_cache_bytes = places * largest;
    segment_bytes_ = std::max(weight_room() / 4, std::min(weight_room() / 2, weight));
}

void Planner::keep_copied_or_streamed() {
    const uint64_t capacity = cache_.ring.present() ? cache_.ring.capacity_bytes() : 0;
    keep_units([&](const UnitNeeds & needs) {
        for (size_t w = 0; w < needs.weights.size(); w++)
            if (streams(needs.weights[w]) && least_piece_bytes(*needs.weights[w], needs.by_rows[w]) > capacity)
                return false;
        return needs.kv.bytes <= capacity;
    });
    share_out_ring();
}

void Planner::place_states() {
    keep_units([&](const UnitNeeds & needs) {
        return std::all_of(needs.states.begin(), needs.states.end(), [&](State * state) {
            return kv_streamed_.count(state) || cache_.place_state(*state, reserve_bytes());
        });
    });
}

} // namespace xlm
