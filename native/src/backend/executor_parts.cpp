// Operations too large for the device at once: a matrix goes through the ring by rows, attention with a large
// mask tile by tile. Both give the bits of the whole.
#include "executor.hpp"

#include <cstring>

namespace xlm {

namespace {

constexpr uint64_t kPackedMaskBytes = 16 << 20; // host copies of mask tiles under way

// Keeps `count` of a dimension; strides and place stay.
void cut_tensor(ggml_tensor & tensor, int dimension, int64_t first, int64_t count) {
    tensor.data = static_cast<char *>(tensor.data) + static_cast<size_t>(first) * tensor.nb[dimension];
    tensor.ne[dimension] = count;
}

// Whose bytes a mask is a copy of.
const ggml_tensor * origin_of(const ggml_tensor & mask) {
    const ggml_tensor * origin = &mask;
    while (origin->op == GGML_OP_CPY && origin->src[0]->type == mask.type &&
           ggml_are_same_shape(origin->src[0], origin) && ggml_is_contiguous(origin->src[0]))
        origin = origin->src[0];
    return origin;
}

void as_mask(ggml_tensor & mask, const ggml_tensor & stage, const AttentionTile & tile) {
    mask.buffer = stage.buffer;
    mask.data = stage.data;
    mask.ne[0] = tile.n_keys;
    mask.ne[1] = tile.n_queries;
    mask.nb[1] = static_cast<size_t>(tile.n_keys) * 2;
    mask.nb[2] = mask.nb[3] = mask.nb[1] * static_cast<size_t>(tile.n_queries);
}

} // namespace

// A matrix larger than the ring: some rows at a time. Each part's result goes home at once, so that a
// reclaim waits for the parts under way only, and what was computed stays computed.
Executor::Outcome Executor::run_by_rows(ggml_cgraph & graph, const GraphInfo & info, const Segment & segment,
                                        const PlanLimits & limits) {
    int node = segment.first;
    while (info.nodes[static_cast<size_t>(node)].view)
        node++;
    const int root = info.nodes[static_cast<size_t>(node)].root;
    for (const Streamed & part : segment.pieces) {
        if (!core_.cache.ring.acquire(&part, 1) || !make_room(*stream_pace_, part.bytes, 1, limits) ||
            !compute_rows(graph, segment, node, part) || !core_.cache.ring.retire(1))
            return Outcome::lost;
        rows_node_ = node;
        rows_done_ = part.first_row + part.n_rows;
        if (&part != &segment.pieces.back() && core_.gate.requested()) return Outcome::interrupted;
    }
    on_host_[static_cast<size_t>(root)] = 1;
    on_device_[static_cast<size_t>(root)] = 0;
    return ahead_.finish() ? Outcome::done : Outcome::lost; // others may read the result on the host now
}

bool Executor::compute_rows(ggml_cgraph & graph, const Segment & segment, int node, const Streamed & part) {
    const ggml_tensor & whole = *graph.nodes[node];
    patch(segment);
    ggml_tensor matrix = core_.cache.ring.tensor(0), rows = whole, *nodes[] = {&rows};
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
    return ok && fetch_rows(rows, whole, part.first_row) && ahead_.submitted(*stream_pace_, part.bytes, 1);
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

// Each layer casts the mask for itself, from F16 to F16 too: all of these have the same tiles.
const std::vector<AttentionTile> & Executor::tiles_of(const ggml_tensor & mask, uint64_t stage_bytes) {
    const ggml_tensor * origin = origin_of(mask);
    if (tiled_mask_ != origin || tiles_stage_bytes_ != stage_bytes)
        tiles_ = attention_tiles(static_cast<const uint16_t *>(mask.data), mask.ne[1], mask.ne[0], stage_bytes);
    tiled_mask_ = origin;
    tiles_stage_bytes_ = stage_bytes;
    return tiles_;
}

// The stream keeps its order: a tile's mask is overwritten only after the tile was computed.
bool Executor::compute_tiles(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment) {
    int at = segment.first;
    while (!info.nodes[static_cast<size_t>(at)].tiled)
        at++;
    const ggml_tensor & whole = *graph.nodes[at];
    ggml_tensor stage = plan.shadows[static_cast<size_t>(info.stage)];
    for (const AttentionTile & tile :
         tiles_of(*whole.src[3], info.roots[static_cast<size_t>(info.stage)].device_bytes)) {
        ggml_tensor q = *whole.src[0], k = *whole.src[1], v = *whole.src[2], mask = *whole.src[3], part = whole;
        if (!send_mask(*whole.src[3], tile, stage)) return false;
        cut_tensor(q, 1, tile.first_query, tile.n_queries);
        cut_tensor(k, 1, tile.first_key, tile.n_keys);
        cut_tensor(v, 1, tile.first_key, tile.n_keys);
        cut_tensor(part, 2, tile.first_query, tile.n_queries);
        as_mask(mask, stage, tile);
        part.src[0] = &q, part.src[1] = &k, part.src[2] = &v, part.src[3] = &mask;
        ggml_tensor * nodes[] = {&part};
        ggml_cgraph view = view_of(graph, at, at);
        view.nodes = nodes;
        if (!core_.inner.compute(&view)) return false;
        core_.stats.n_attention_tiles++;
    }
    return true;
}

bool Executor::send_mask(const ggml_tensor & mask, const AttentionTile & tile, ggml_tensor & stage) {
    const size_t row_bytes = static_cast<size_t>(tile.n_keys) * 2;
    const char * from = static_cast<const char *>(mask.data) + static_cast<size_t>(tile.first_query) * mask.nb[1] +
                        static_cast<size_t>(tile.first_key) * 2;
    core_.stats.bytes_masks_up += tile.mask_bytes();
    if (tile.n_keys == mask.ne[0]) return core_.inner.set(Stream::compute, &stage, from, 0, tile.mask_bytes());
    if (packed_bytes_ > kPackedMaskBytes) {
        if (!core_.inner.synchronize(Stream::compute)) return false;
        packed_masks_.clear();
        packed_bytes_ = 0;
    }
    std::vector<char> & packed = packed_masks_.emplace_back(tile.mask_bytes());
    packed_bytes_ += packed.size();
    for (int64_t row = 0; row < tile.n_queries; row++)
        std::memcpy(packed.data() + static_cast<size_t>(row) * row_bytes, from + static_cast<size_t>(row) * mask.nb[1],
                    row_bytes);
    return core_.inner.set(Stream::compute, &stage, packed.data(), 0, packed.size());
}

} // namespace xlm
