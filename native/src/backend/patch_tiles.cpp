// Computes a run of operations some patches at a time: the nodes as they are, on a part of each tensor. What only the
// run itself uses lies in a place of one tile, all else where it would lie anyway.
#include "executor.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace xlm {

namespace {

// The segment's nodes as a graph of their own, moved from tile to tile.
class TileGraph {
public:
    TileGraph(const ggml_cgraph & graph, const GraphInfo & info, const Segment & segment)
        : graph_(graph), info_(info),
          run_(info.runs[static_cast<size_t>(segment.run)]), span_{segment.first, segment.last, segment.run} {
        for (size_t r = 0; r < info.roots.size(); r++)
            if (lives_in_tile(info, static_cast<int>(r), span_)) in_tile_.insert(info.roots[r].tensor);
        for (int i = segment.first; i <= segment.last; i++)
            if (computes(i)) add(i);
        count_uses();
    }

    // Units first to first + count.
    void move(int64_t first, int64_t count) {
        for (Part & part : parts_) {
            if (part.cut.dim < 0) continue;
            ggml_tensor & t = part.tensor;
            const int d = part.cut.dim;
            const size_t shift = static_cast<size_t>(first * part.cut.rows) * part.original.nb[d];
            t.data = static_cast<char *>(part.original.data) + (part.in_tile ? 0 : shift);
            t.ne[d] = count * part.cut.rows;
            for (int i = d + 1; i < GGML_MAX_DIMS; i++)
                if (t.ne[i] == 1) t.nb[i] = t.nb[i - 1] * static_cast<size_t>(t.ne[i - 1]);
        }
    }

    ggml_cgraph & graph() { return view_; }
    const PatchRun & run() const { return run_; }
    ggml_tensor & node(int i) { return *copies_.at(graph_.nodes[i]); }
    ggml_tensor * positions = nullptr; // where they are packed, if they are

    // A node of the caller's that is run behind node i.
    void insert_behind(int i, ggml_tensor * tensor) {
        nodes_.insert(std::find(nodes_.begin(), nodes_.end(), &node(i)) + 1, tensor);
        view_.nodes = nodes_.data();
        view_.n_nodes = view_.size = static_cast<int>(nodes_.size());
    }

private:
    struct Part {
        ggml_tensor tensor, original;
        PatchCut cut;
        bool in_tile;
    };

    bool computes(int i) const {
        const PatchEmbedding * embedding = run_.embedding_at(i);
        return !info_.nodes[static_cast<size_t>(i)].view && !(embedding && embedding->copy == i);
    }

    void add(int i) {
        ggml_tensor * node = graph_.nodes[i];
        const NodeCut & cut = run_.cut(i);
        ggml_tensor * copy = part_of(node, cut.out, false);
        for (size_t s = 0; s < GGML_MAX_SRC; s++) {
            ggml_tensor * source = node->src[s];
            if (!source) continue;
            if (s == 1 && cut.packed_positions) {
                copy->src[s] = positions = positions ? positions : part_of(source, {}, true);
            } else {
                copy->src[s] = part_of(source, cut.sources[s], true);
            }
        }
        nodes_.push_back(copy);
    }

    ggml_tensor * part_of(ggml_tensor * tensor, const PatchCut & cut, bool source) {
        if (const auto known = copies_.find(tensor); known != copies_.end()) return known->second;
        const ggml_tensor * root = tensor->view_src ? tensor->view_src : tensor;
        parts_.push_back({*tensor, *tensor, cut, in_tile_.count(root) > 0});
        ggml_tensor & copy = parts_.back().tensor;
        if (!copy.buffer) copy.buffer = root->buffer;
        copy.view_src = nullptr;
        copy.view_offs = 0;
        if (source) {
            copy.op = GGML_OP_NONE;
            std::fill(std::begin(copy.src), std::end(copy.src), nullptr);
        }
        return copies_[tensor] = &copy;
    }

    // As in the whole graph, so that the device fuses what it would fuse there.
    void count_uses() {
        const size_t size = ggml_hash_size(2 * nodes_.size() + 1);
        keys_.assign(size, nullptr);
        used_.assign(ggml_bitset_size(size), 0);
        uses_.assign(size, 0);
        view_.visited_hash_set = {size, used_.data(), keys_.data()};
        view_.use_counts = uses_.data();
        view_.order = graph_.order;
        for (int i = span_.first; i <= span_.last; i++) {
            if (!computes(i)) continue;
            const size_t at = ggml_hash_find_or_insert(&view_.visited_hash_set, &node(i));
            uses_[at] = ggml_node_get_use_count(&graph_, i);
        }
        view_.nodes = nodes_.data();
        view_.n_nodes = view_.size = static_cast<int>(nodes_.size());
    }

    const ggml_cgraph & graph_;
    const GraphInfo & info_;
    const PatchRun & run_;
    PatchSpan span_;
    std::deque<Part> parts_; // their addresses stay
    std::unordered_set<const ggml_tensor *> in_tile_;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies_;
    std::vector<ggml_tensor *> nodes_;
    std::vector<ggml_tensor *> keys_;
    std::vector<ggml_bitset_t> used_;
    std::vector<int32_t> uses_;
    ggml_cgraph view_{};
};

// A kernel over the picture. Its result is laid out patch by patch within each channel: a tile of it is computed in a
// place of its own and copied to where it belongs.
class Kernel {
public:
    // `whole`: where the result belongs.
    Kernel(TileGraph & tiles, const PatchEmbedding & at, const ggml_tensor & whole, ggml_tensor & picture, char * place)
        : columns_(tiles.node(at.columns)), product_(tiles.node(at.product)), whole_(product_), place_(place) {
        whole_.data = whole.data;
        whole_.buffer = whole.buffer;
        product_.buffer = picture.buffer;
        columns_.src[1] = &picture;
        copy_.op = GGML_OP_CPY;
        tiles.insert_behind(at.product, &copy_);
    }

    void move(int64_t first, int64_t count) {
        const int64_t patches = columns_.ne[1] * count;
        ggml_tensor target = whole_;
        target.ne[0] = patches;
        target.data = static_cast<char *>(whole_.data) + static_cast<size_t>(columns_.ne[1] * first) * whole_.nb[0];
        std::fill(std::begin(target.src), std::end(target.src), nullptr);
        std::fill(std::begin(target.op_params), std::end(target.op_params), 0);
        target.op = GGML_OP_CPY;
        target.src[0] = &product_;
        target.src[1] = &copy_;
        copy_ = target;
        product_.data = place_;
        product_.ne[0] = patches;
        for (int d = 1; d < GGML_MAX_DIMS; d++)
            product_.nb[d] = product_.nb[d - 1] * static_cast<size_t>(product_.ne[d - 1]);
    }

    int64_t patch_rows() const { return columns_.src[0]->ne[1]; } // of pixels

private:
    ggml_tensor &columns_, &product_;
    ggml_tensor whole_;
    ggml_tensor copy_{};
    char * place_;
};

// All kernels of a segment over one picture, of which each tile's rows are sent once: those of the next one while the
// device is at this one, if `ahead` and if there are events.
class Embedding {
public:
    Embedding(Inner & inner, TileGraph & tiles, const ggml_cgraph & graph, const Segment & segment, char * place,
              const DeviceBuffer & scratch, const TilePlaces & places, bool ahead)
        : inner_(inner), image_(*graph.nodes[tiles.run().first]->src[1]),
          picture_(image_), places_{place + places.images[0], place + places.images[1]},
          ahead_(ahead && inner.has_events()) {
        picture_.buffer = scratch.get();
        picture_.op = GGML_OP_NONE;
        for (const PatchEmbedding & at : tiles.run().embeddings)
            if (at.columns >= segment.first && at.last() <= segment.last)
                kernels_.emplace_back(tiles, at, *graph.nodes[at.last()], picture_, place + places.result);
    }

    void move(int64_t first, int64_t count) {
        const int64_t rows = kernels_.front().patch_rows() * count;
        first_row_ = kernels_.front().patch_rows() * first;
        picture_.data = places_[n_sent_ % 2];
        picture_.ne[1] = rows;
        picture_.nb[2] = picture_.nb[1] * static_cast<size_t>(rows);
        picture_.nb[3] = picture_.nb[2] * static_cast<size_t>(picture_.ne[2]);
        for (Kernel & kernel : kernels_)
            kernel.move(first, count);
    }

    // The rows of the picture that the tile is made of, once nothing reads their place any more.
    bool send() {
        if (!ahead_) return send(Stream::compute);
        if (n_sent_ == 0 && !mark(read_[1])) return false;
        ggml_backend_event_t before = n_sent_ < 2 ? read_[1] : read_[n_sent_ % 2];
        if (!inner_.wait(Stream::upload, before) || !send(Stream::upload)) return false;
        const ggml_backend_event_t sent = inner_.next_event(Events::pictures);
        return inner_.record(Stream::upload, sent) && inner_.wait(Stream::compute, sent);
    }

    // The tile was submitted.
    bool computed() { return mark(read_[n_sent_++ % 2]); }

    size_t bytes() const { return picture_.nb[3]; }

private:
    bool send(Stream stream) {
        const char * from = static_cast<const char *>(image_.data) + static_cast<size_t>(first_row_) * image_.nb[1];
        for (int64_t channel = 0; channel < image_.ne[2]; channel++) {
            const size_t at = static_cast<size_t>(channel);
            if (!inner_.set(stream, &picture_, from + at * image_.nb[2], at * picture_.nb[2], picture_.nb[2]))
                return false;
        }
        return true;
    }

    bool mark(ggml_backend_event_t & event) {
        if (!ahead_) return true;
        event = inner_.next_event(Events::pictures);
        return inner_.record(Stream::compute, event);
    }

    Inner & inner_;
    const ggml_tensor & image_; // on the host
    ggml_tensor picture_;
    char * places_[2];
    const bool ahead_;
    ggml_backend_event_t read_[2] = {nullptr, nullptr}; // behind what reads the places
    std::deque<Kernel> kernels_;                        // their addresses stay
    int64_t first_row_ = 0;
    size_t n_sent_ = 0;
};

} // namespace

// The stream keeps its order: what a tile needs is overwritten only after it was computed.
bool Executor::compute_patches(ggml_cgraph & graph, const GraphInfo & info, const Segment & segment) {
    TileGraph tiles(graph, info, segment);
    const PatchRun & run = tiles.run();
    const DeviceBuffer & scratch = core_.cache.scratch();
    char * place = scratch.base() + segment.tile_offset + TilePlaces(run, segment.tile_units).positions;
    const ggml_tensor * positions = packed_positions(graph, info, segment);
    for (int64_t first = 0; first < run.n_units; first += segment.tile_units) {
        const int64_t count = std::min(segment.tile_units, run.n_units - first);
        tiles.move(first, count);
        if (positions) {
            tiles.positions->buffer = scratch.get();
            tiles.positions->data = place;
            if (!send_positions(*positions, *tiles.positions, first, count, run.n_units)) return false;
        }
        if (!core_.inner.compute(&tiles.graph())) return false;
        core_.stats.n_patch_tiles++;
    }
    return true;
}

Executor::Outcome Executor::embed_patches(ggml_cgraph & graph, const GraphInfo & info, const Plan & plan,
                                          const Segment & segment, const PlanLimits & limits) {
    TileGraph tiles(graph, info, segment);
    const PatchRun & run = tiles.run();
    const DeviceBuffer & scratch = core_.cache.scratch();
    Pace & pace = pace_of(segment);
    Embedding embedding(core_.inner, tiles, graph, segment, scratch.base() + segment.tile_offset, scratch,
                        TilePlaces(run, segment.tile_units), plan.stream_order.empty()); // weights on their way first
    bool first = true;
    while (partial_.done < run.n_units) {
        const int64_t count = std::min(segment.tile_units, run.n_units - partial_.done);
        const uint64_t cost = segment.cost * static_cast<uint64_t>(count) / static_cast<uint64_t>(run.n_units);
        const Outcome ready = before_part(pace, cost, std::exchange(first, false), limits);
        if (ready != Outcome::done) return ready;
        tiles.move(partial_.done, count);
        embedding.move(partial_.done, count);
        if (!embedding.send() || !core_.inner.compute(&tiles.graph()) || !embedding.computed()) return Outcome::lost;
        core_.stats.bytes_activations_up += embedding.bytes();
        core_.stats.n_patch_tiles++;
        partial_.done += count;
        if (!part_submitted(pace, cost)) return Outcome::lost;
    }
    return Outcome::done;
}

// On the host.
const ggml_tensor * Executor::packed_positions(const ggml_cgraph & graph, const GraphInfo & info,
                                               const Segment & segment) {
    const PatchRun & run = info.runs[static_cast<size_t>(segment.run)];
    for (int i = std::max(segment.first, run.first); i <= segment.last; i++) {
        if (info.nodes[static_cast<size_t>(i)].view || !run.cut(i).packed_positions) continue;
        host_positions_ = *graph.nodes[i]->src[1];
        for (const Saved & saved : saved_)
            if (saved.tensor == graph.nodes[i]->src[1]) host_positions_.data = saved.data;
        return &host_positions_;
    }
    return nullptr;
}

// Four rows of positions, of which a tile has some columns.
bool Executor::send_positions(const ggml_tensor & positions, ggml_tensor & part, int64_t first, int64_t count,
                              int64_t n_units) {
    const auto row = static_cast<size_t>(positions.ne[0] / 4);
    const size_t per_unit = row / static_cast<size_t>(n_units), n = per_unit * static_cast<size_t>(count);
    std::vector<char> & packed = on_their_way_.emplace_back(4 * n * sizeof(int32_t));
    const auto * from = static_cast<const int32_t *>(positions.data) + per_unit * static_cast<size_t>(first);
    for (size_t r = 0; r < 4; r++)
        std::memcpy(packed.data() + r * n * sizeof(int32_t), from + r * row, n * sizeof(int32_t));
    part.ne[0] = static_cast<int64_t>(4 * n);
    part.nb[1] = part.nb[2] = part.nb[3] = 4 * n * sizeof(int32_t);
    return core_.inner.set(Stream::compute, &part, packed.data(), 0, packed.size());
}

} // namespace xlm
