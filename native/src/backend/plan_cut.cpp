// A graph cut into segments, and what each of them needs.
#include "planner.hpp"

namespace xlm {

namespace {

constexpr size_t kMaxPieces = 16; // of a segment; well below what the ring keeps track of

// Parts of a resident matrix begin where a view may begin on any device, in the matrix and in the result (of 4 bytes).
constexpr uint64_t kPartAlignment = 256, kMaxParts = 16;
constexpr int64_t kRowsAligned = kPartAlignment / 4;
constexpr int64_t kMaxColumns = 8; // with more, GPUs may sum in an order that depends on the number of rows

constexpr uint64_t kFlopsPerByte = 16; // what devices do while they read a byte, roughly

uint64_t elements(const ggml_tensor & tensor) {
    return static_cast<uint64_t>(ggml_nelements(&tensor));
}

} // namespace

void Planner::cut() {
    const uint32_t max_units = info_.vision ? 1 : std::max(1U, limits_.max_units_in_flight / 2);
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
            segment->sends_home = ends_before_output(node.owner);
            if (full || streams(node.owner) || streams(unit) || segment->sends_home)
                segment = &open(i), segment->on_device = true;
            else
                segment->n_units++;
        } else if (info_.vision && node.owner != unit && seen_work_) {
            segment = &open(i); // a budget that comes back is used from the next sub-layer on
        }
        if (!node.view && !on_device_[static_cast<size_t>(i)]) {
            if (seen_work_ && segment->casts_masks != node.casts_mask) segment = &open(i);
            segment->casts_masks = node.casts_mask;
        }
        if (const int group = device_units_.empty() ? -1 : group_at(i); group >= 0) {
            if (i > segment->first) segment = &open(i);
            segment->on_device = true;
            segment->experts = group;
        }
        if (const KvStream * kv = kv_at(i)) {
            if (seen_work_) segment = &open(i);
            segment->on_device = true;
            segment->pieces.push_back({nullptr, 0, 0, kv->bytes, kv->states});
            if (plan_.ring_cache_bytes == 0) piece_bytes_ += kv->bytes;
        }
        if (info_.vision && !node.view && segment->on_device) {
            if (seen_work_ && cut_between(info_, info_.nodes[static_cast<size_t>(last_work_)], node))
                segment = &open(i), segment->on_device = true;
            segment->tiled = node.tiled;
            segment->run = node.run;
        }
        if (!node.view) seen_work_ = true, last_work_ = i;
        if (node.owner != unit || open_cost_ == 0) open_cost_ += needs_[static_cast<size_t>(node.owner)].cost;
        if (on_device_[static_cast<size_t>(i)]) add_pieces(i);
        plan_.segments.back().last = i;
        unit = node.owner;
    }
}

// While the device is at the output matrix, what is ready before goes home.
bool Planner::ends_before_output(int next_unit) const {
    const SubLayer * next = info_.units[static_cast<size_t>(next_unit)].sublayer;
    const bool computes = graph_.n_nodes > 0 && !ggml_is_empty(graph_.nodes[graph_.n_nodes - 1]);
    return next && next->kind == XLM_KIND_OUTPUT && computes && !info_.state_writes.empty() && inner_.has_events();
}

Segment & Planner::open(int first) {
    plan_.segments.emplace_back();
    plan_.segments.back().first = first;
    piece_bytes_ = open_cost_ = 0;
    seen_work_ = false;
    return plan_.segments.back();
}

bool Planner::streams(int unit) const {
    if (unit < 0 || device_units_.empty() || !device_units_[static_cast<size_t>(unit)]) return false;
    const auto & weights = needs_[static_cast<size_t>(unit)].weights;
    return std::any_of(weights.begin(), weights.end(), [&](const Weight * weight) { return streams(weight); });
}

// A matrix too large for the ring, or one that would keep a reclaim waiting: its node is a segment of its own, computed
// in parts.
bool Planner::open_by_rows(int i) {
    const Node & node = info_.nodes[static_cast<size_t>(i)];
    for (uint32_t s = 0; s < node.n_sources; s++) {
        const Root & root = info_.roots[static_cast<size_t>(info_.sources[node.first_source + s])];
        if (!root.weight) continue;
        const bool in_place = !streams(root.weight);
        const int64_t at_once =
            in_place ? rows_in_time(i, root) : rows_at_once(*root.weight, root.by_rows, weight_room());
        if (at_once == 0) continue;
        const bool begins = seen_work_ && info_.nodes[static_cast<size_t>(last_work_)].owner != node.owner;
        if (begins && plan_.segments.back().on_device)
            plan_.segments.back().sends_home = ends_before_output(node.owner);
        Segment & segment = seen_work_ ? open(i) : plan_.segments.back();
        segment.on_device = segment.by_rows = seen_work_ = true;
        segment.in_place = in_place;
        segment.last = last_work_ = i;
        list_rows(segment, *root.weight, at_once, i == limits_.rows_node ? limits_.rows_done : 0);
        return true;
    }
    return false;
}

// Rows of a resident matrix that are computed within the time of a segment; 0: all of them. Only where the result goes
// home anyway, as logits do: elsewhere parts would cost two copies.
int64_t Planner::rows_in_time(int i, const Root & root) const {
    const int result = info_.nodes[static_cast<size_t>(i)].root;
    const bool goes_home = result >= 0 && info_.roots[static_cast<size_t>(result)].escapes;
    const uint64_t bytes = root.weight->device_bytes;
    if (!root.by_rows || !goes_home || bytes <= limits_.max_segment_cost) return 0;
    const int64_t n_columns = ggml_nrows(graph_.nodes[i]);
    if (n_columns == 0 || n_columns > kMaxColumns) return 0;
    const ggml_tensor & matrix = *root.weight->tensor;
    int64_t step = kRowsAligned;
    while (static_cast<size_t>(step) * matrix.nb[1] % kPartAlignment != 0)
        step *= 2;
    const uint64_t parts = std::min(kMaxParts, (bytes - 1) / std::max<uint64_t>(1, limits_.max_segment_cost) + 1);
    const int64_t rows = matrix.ne[1] / static_cast<int64_t>(parts) + 1;
    const int64_t at_once = (rows + step - 1) / step * step;
    return at_once < matrix.ne[1] ? at_once : 0;
}

void Planner::list_rows(Segment & segment, Weight & weight, int64_t at_once, int64_t first_row) const {
    const int64_t n_rows = weight.tensor->ne[1];
    for (int64_t row = first_row; row < n_rows; row += at_once) {
        const int64_t n = std::min(at_once, n_rows - row);
        segment.pieces.push_back({&weight, row, n, bytes_of_rows(weight, n)});
    }
}

// Streamed weights of a node that the open segment does not have yet.
std::vector<Streamed> Planner::new_pieces(const Node & node) const {
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

// An embedding is never cut in two: its columns live in a tile, and its kernel is needed with them.
int Planner::reads_weights_for(int i) const {
    const int run = info_.nodes[static_cast<size_t>(i)].run;
    const PatchEmbedding * embedding = run < 0 ? nullptr : info_.runs[static_cast<size_t>(run)].embedding_at(i);
    return embedding ? embedding->product : i;
}

void Planner::add_pieces(int i) {
    const Node & node = info_.nodes[static_cast<size_t>(reads_weights_for(i))];
    std::vector<Streamed> pieces = new_pieces(node);
    if (pieces.empty()) return;
    uint64_t bytes = 0;
    for (const Streamed & piece : pieces)
        bytes += piece.bytes;
    const Segment & open_segment = plan_.segments.back();
    // A run in tiles is worth more: cut in two, what lies between would be there as a whole.
    const uint64_t most = open_segment.run >= 0 ? weight_room() / 2 : segment_bytes_;
    const bool full = piece_bytes_ + bytes > most || open_segment.pieces.size() >= kMaxPieces;
    if (!open_segment.pieces.empty() && full && i > open_segment.first) {
        open(i).on_device = true;
        plan_.segments.back().run = node.run;
        seen_work_ = true;
        pieces = new_pieces(node);
    }
    for (const Streamed & piece : pieces) {
        plan_.segments.back().pieces.push_back(piece);
        piece_bytes_ += piece.bytes;
    }
}

void Planner::cut_and_list() {
    plan_.segments.clear();
    seen_work_ = false;
    cut();
    for (Segment & segment : plan_.segments) {
        list_writes(segment);
        if (segment.on_device) list_needs(segment);
    }
}

void Planner::list_needs(Segment & segment) {
    plan_.uses_device = true;
    weights_.clear();
    for (int i = segment.first; i <= segment.last; i++) {
        const Node & entry = info_.nodes[static_cast<size_t>(i)];
        if (entry.view || ggml_is_empty(graph_.nodes[i])) continue; // a step without logits needs no output matrix
        for (uint32_t s = 0; s < entry.n_sources; s++) {
            const int source = info_.sources[entry.first_source + s];
            if (source != entry.root) note_need(segment, source, i); // a cast names its own result
        }
        if (entry.partial) note_need(segment, entry.root, i);
    }
    segment.cost = kUnitCost * segment.n_units;
    if (info_.vision) segment.cost += patch_work(segment);
    for (const Weight * weight : weights_)
        segment.cost += weight->device_bytes;
    for (const State * state : segment.states)
        segment.cost += state_cost(*state);
    for (const Streamed & piece : segment.pieces)
        for (const State * state : piece.states)
            segment.cost += state_cost(*state);
    if (segment.in_place) return;
    plan_.stream_order.insert(plan_.stream_order.end(), segment.pieces.begin(), segment.pieces.end());
}

// Of a vision graph: patches, not weights, decide how long it takes.
uint64_t Planner::patch_work(const Segment & segment) const {
    uint64_t bytes = 0, flops = 0;
    for (int i = segment.first; i <= segment.last; i++) {
        if (info_.nodes[static_cast<size_t>(i)].view) continue;
        const ggml_tensor & node = *graph_.nodes[i];
        bytes += ggml_nbytes(&node) + (node.src[0] ? ggml_nbytes(node.src[0]) : 0);
        if (node.op == GGML_OP_MUL_MAT) flops += 2 * elements(node) * static_cast<uint64_t>(node.src[0]->ne[0]);
        if (node.op == GGML_OP_FLASH_ATTN_EXT)
            flops += 4 * elements(*node.src[0]) * static_cast<uint64_t>(node.src[1]->ne[1]);
    }
    return bytes + flops / kFlopsPerByte;
}

void Planner::list_writes(Segment & segment) {
    for (int i = segment.first; i <= segment.last; i++) {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        if (node.root >= 0 && info_.roots[static_cast<size_t>(node.root)].cls == RootClass::activation)
            add_once(segment.writes, node.root);
    }
    for (size_t w = 0; w < info_.state_writes.size(); w++)
        if (info_.state_writes[w].node >= segment.first && info_.state_writes[w].node <= segment.last)
            segment.state_writes.push_back(static_cast<int>(w));
}

void Planner::note_need(Segment & segment, int r, int i) {
    const Root & root = info_.roots[static_cast<size_t>(r)];
    if (root.state && !kv_streamed_.count(root.state)) add_once(segment.states, root.state);
    if (root.weight) add_once<const Weight *>(weights_, root.weight);
    if (root.weight && root.weight->sublayer->copy) add_once(segment.residents, root.weight->sublayer);
    const bool made_here = root.producer >= segment.first && root.producer < i;
    if (root.cls == RootClass::activation && !root.hosted && !made_here) add_once(segment.needs, r);
}

} // namespace xlm
