// Operations too large for the device at once: a matrix goes through the ring by rows, attention with a large
// mask tile by tile. Both give the bits of the whole.
#include "executor.hpp"

#include <optional>
#include <utility>

namespace xlm {

namespace {

// Keeps `count` of a dimension; strides and place stay.
void cut_tensor(ggml_tensor & tensor, int dimension, int64_t first, int64_t count) {
    tensor.data = static_cast<char *>(tensor.data) + static_cast<size_t>(first) * tensor.nb[dimension];
    tensor.ne[dimension] = count;
}

void as_mask(ggml_tensor & mask, const ggml_tensor & stage, const AttentionTile & tile) {
    mask.buffer = stage.buffer;
    mask.data = stage.data;
    mask.ne[0] = tile.n_keys;
    mask.ne[1] = tile.n_queries;
    mask.nb[1] = static_cast<size_t>(tile.n_keys) * 2;
    mask.nb[2] = mask.nb[3] = mask.nb[1] * static_cast<size_t>(tile.n_queries);
}

int tiled_node(const GraphInfo & info, const Segment & segment) {
    int at = segment.first;
    while (!info.nodes[static_cast<size_t>(at)].tiled)
        at++;
    return at;
}

// Roots that parts of a segment add to.
std::vector<size_t> results_in_parts(const GraphInfo & info, const Segment & segment) {
    const auto root_of = [&](int node) { return static_cast<size_t>(info.nodes[static_cast<size_t>(node)].root); };
    if (segment.tiled) return {root_of(tiled_node(info, segment))};
    std::vector<size_t> roots;
    for (const PatchEmbedding & embedding : info.runs[static_cast<size_t>(segment.run)].embeddings)
        if (embedding.columns >= segment.first && embedding.last() <= segment.last)
            roots.push_back(root_of(embedding.last()));
    return roots;
}

} // namespace

// A matrix some rows at a time: larger than the ring, or resident and slow. Each part's result goes home at once, so
// that a reclaim waits for the parts under way only, and what was computed stays computed.
Executor::Outcome Executor::run_by_rows(ggml_cgraph & graph, const GraphInfo & info, const Segment & segment,
                                        const PlanLimits & limits) {
    int node = segment.first;
    while (info.nodes[static_cast<size_t>(node)].view)
        node++;
    const int root = info.nodes[static_cast<size_t>(node)].root;
    for (const Streamed & part : segment.pieces) {
        if (node == rows_node_ && part.first_row < rows_done_) continue; // before it gave way
        const Outcome ready = before_rows(segment, part, limits);
        if (ready != Outcome::done) return ready;
        if (!compute_rows(graph, segment, node, part)) return Outcome::lost;
        if (!segment.in_place && !core_.cache.ring.retire(1)) return Outcome::lost;
        rows_node_ = node;
        rows_done_ = part.first_row + part.n_rows;
        if (&part != &segment.pieces.back() && core_.gate.requested()) return Outcome::interrupted;
    }
    on_host_[static_cast<size_t>(root)] = 1;
    on_device_[static_cast<size_t>(root)] = 0;
    return ahead_.finish() ? Outcome::done : Outcome::lost; // others may read the result on the host now
}

// Interrupted by a reclaim, while it waited for room. A piece of the ring that was waited for is computed first.
Executor::Outcome Executor::before_rows(const Segment & segment, const Streamed & part, const PlanLimits & limits) {
    if (!segment.in_place && !core_.cache.ring.acquire(&part, 1)) return Outcome::lost;
    if (!make_room(pace_of(segment), part.bytes, 1, limits)) return Outcome::lost;
    return segment.in_place && wanted_back(segment) ? Outcome::interrupted : Outcome::done;
}

bool Executor::compute_rows(ggml_cgraph & graph, const Segment & segment, int node, const Streamed & part) {
    const ggml_tensor & whole = *graph.nodes[node];
    patch(segment);
    ggml_tensor matrix = segment.in_place ? *whole.src[0] : core_.cache.ring.tensor(0), rows = whole,
                *nodes[] = {&rows};
    if (segment.in_place) cut_tensor(matrix, 1, part.first_row, part.n_rows);
    rows.src[0] = &matrix;
    rows.ne[0] = part.n_rows;
    for (int d = 1; d < GGML_MAX_DIMS; d++)
        rows.nb[d] = rows.nb[d - 1] * static_cast<size_t>(rows.ne[d - 1]);
    rows.data = static_cast<char *>(whole.data) + static_cast<size_t>(part.first_row * ggml_nrows(&whole)) * rows.nb[0];
    ggml_cgraph view = view_of(graph, node, node);
    view.nodes = nodes;
    const bool ok = core_.inner.compute(&view);
    unpatch(segment);
    core_.stats.n_segments_device++;
    return ok && fetch_rows(rows, whole, part.first_row) && ahead_.submitted(pace_of(segment), part.bytes, 1);
}

// The part is contiguous; in the whole result its rows are pieces of longer ones.
bool Executor::fetch_rows(const ggml_tensor & rows, const ggml_tensor & whole, int64_t first_row) {
    const size_t bytes = rows.nb[1], whole_bytes = ggml_row_size(whole.type, whole.ne[0]);
    char * data = static_cast<char *>(whole.data) + static_cast<size_t>(first_row) * rows.nb[0];
    for (int64_t i = 0; i < ggml_nrows(&rows); i++) {
        const size_t from = static_cast<size_t>(i) * bytes, to = static_cast<size_t>(i) * whole_bytes;
        if (!core_.inner.get(Stream::compute, &rows, data + to, from, bytes)) return false;
    }
    core_.stats.bytes_activations_down += ggml_nbytes(&rows);
    return true;
}

// Instead of casting. The device computes meanwhile; a reclaim comes first, and the second try lets others in.
Executor::Outcome Executor::note_masks(const ggml_cgraph & graph, const GraphInfo & info, const Segment & segment) {
    std::optional<GateWindow> window;
    if (gave_way_at_ == segment.first) window.emplace(core_.gate); // host memory is canonical
    for (int i = segment.first; i <= segment.last; i++)
        if (info.nodes[static_cast<size_t>(i)].casts_mask && !note_mask(*graph.nodes[i], info, !window))
            return Outcome::interrupted;
    return Outcome::done;
}

// Masks that were there before the graph, while the device is at the patch embedding; unless a reclaim comes.
void Executor::note_inputs(const ggml_cgraph & graph, const GraphInfo & info, const Plan & plan, size_t from) {
    for (size_t s = from; s < plan.segments.size() && !core_.gate.requested(); s++) {
        const Segment & segment = plan.segments[s];
        if (!segment.casts_masks) continue;
        for (int i = segment.first; i <= segment.last; i++) {
            const Node & node = info.nodes[static_cast<size_t>(i)];
            if (!node.casts_mask || info.roots[static_cast<size_t>(info.sources[node.first_source])].producer >= 0)
                continue;
            note_mask(*graph.nodes[i], info, true);
        }
    }
}

bool Executor::note_mask(const ggml_tensor & cast, const GraphInfo & info, bool stops) {
    const uint64_t stage_bytes = info.roots[static_cast<size_t>(info.stage)].device_bytes;
    return masks_.cast(cast, stage_bytes, [&] { return stops && core_.gate.requested(); });
}

void Executor::write_noted_masks(const GraphInfo & info, const Segment & segment) {
    for (int i = segment.first; info.vision && i <= segment.last; i++) {
        const Node & node = info.nodes[static_cast<size_t>(i)];
        for (uint32_t s = 0; s < node.n_sources; s++)
            masks_.write_whole(*info.roots[static_cast<size_t>(info.sources[node.first_source + s])].tensor);
    }
}

// The stream keeps its order: a tile's mask is overwritten only after the tile was computed.
bool Executor::compute_tile(ggml_cgraph & graph, int at, ggml_tensor stage, const AttentionTile & tile,
                            const uint16_t * values) {
    const ggml_tensor & whole = *graph.nodes[at];
    ggml_tensor q = *whole.src[0], k = *whole.src[1], v = *whole.src[2], mask = *whole.src[3], part = whole;
    core_.stats.bytes_masks_up += tile.mask_bytes();
    if (!core_.inner.set(Stream::compute, &stage, values, 0, tile.mask_bytes())) return false;
    cut_tensor(q, 1, tile.first_query, tile.n_queries);
    cut_tensor(k, 1, tile.first_key, tile.n_keys);
    cut_tensor(v, 1, tile.first_key, tile.n_keys);
    cut_tensor(part, 2, tile.first_query, tile.n_queries);
    as_mask(mask, stage, tile);
    part.src[0] = &q, part.src[1] = &k, part.src[2] = &v, part.src[3] = &mask;
    ggml_tensor * nodes[] = {&part};
    ggml_cgraph view = view_of(graph, at, at);
    view.nodes = nodes;
    return core_.inner.compute(&view);
}

Executor::Outcome Executor::compute_tiles(ggml_cgraph & graph, const GraphInfo & info, const Plan & plan,
                                          const Segment & segment, const PlanLimits & limits) {
    const int at = tiled_node(info, segment);
    const ggml_tensor & whole = *graph.nodes[at];
    const ggml_tensor & stage = plan.shadows[static_cast<size_t>(info.stage)];
    const uint64_t stage_bytes = info.roots[static_cast<size_t>(info.stage)].device_bytes;
    const uint64_t n_queries = static_cast<uint64_t>(whole.src[0]->ne[1]);
    Pace & pace = pace_of(segment);
    bool first = true;
    for (const auto & [tile, values] : masks_.of(*whole.src[3], stage_bytes).tiles) {
        if (tile.first_query < partial_.done) continue;
        const uint64_t cost = segment.cost * static_cast<uint64_t>(tile.n_queries) / n_queries;
        const Outcome ready = before_part(pace, cost, std::exchange(first, false), limits);
        if (ready != Outcome::done) return ready;
        if (!compute_tile(graph, at, stage, tile, values)) return Outcome::lost;
        core_.stats.n_attention_tiles++;
        partial_.done = tile.first_query + tile.n_queries;
        if (!part_submitted(pace, cost)) return Outcome::lost;
    }
    return Outcome::done;
}

// Interrupted: somebody wants memory back, or the step to end. One part is computed in any case: a storm of reclaims
// must not hold an image up for ever.
Executor::Outcome Executor::before_part(Pace & pace, uint64_t cost, bool first, const PlanLimits & limits) {
    if (!make_room(pace, cost, pace.known() ? 0 : 1, limits)) return Outcome::lost; // known: time alone is the bound
    const bool wanted = core_.gate.requested() || core_.abort_step.load();
    return wanted && !first ? Outcome::interrupted : Outcome::done;
}

bool Executor::part_submitted(Pace & pace, uint64_t cost) {
    return ahead_.submitted(pace, cost, pace.known() ? 0 : 1);
}

// What was there when the segment gave way; nothing otherwise.
bool Executor::restore_partial(Plan & plan, const Segment & segment) {
    if (partial_.first != segment.first || partial_.last != segment.last)
        partial_ = {segment.first, segment.last, 0, {}};
    for (auto & [root, kept] : partial_.kept) {
        const std::vector<char> & values = on_their_way_.emplace_back(std::move(kept));
        if (!core_.inner.set(Stream::compute, &plan.shadows[root], values.data(), 0, values.size())) return false;
        core_.stats.bytes_activations_up += values.size();
    }
    partial_.kept.clear();
    return true;
}

bool Executor::keep_partial(const GraphInfo & info, Plan & plan, const Segment & segment) {
    for (size_t root : results_in_parts(info, segment)) {
        std::vector<char> & values = partial_.kept.emplace_back(root, ggml_nbytes(info.roots[root].tensor)).second;
        if (!core_.inner.get(Stream::compute, &plan.shadows[root], values.data(), 0, values.size())) return false;
        core_.stats.bytes_activations_down += values.size();
    }
    return true;
}

} // namespace xlm
