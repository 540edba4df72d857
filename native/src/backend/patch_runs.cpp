#include "patch_runs.hpp"

#include "analyse.hpp"

#include "ggml-impl.h"

#include <algorithm>
#include <unordered_map>

namespace xlm {

namespace {

constexpr uint64_t kPlaceAlignment = 512;

uint64_t aligned(uint64_t bytes) {
    return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

bool whole_bytes(const ggml_tensor & tensor) {
    return ggml_blck_size(tensor.type) == 1;
}

// The dimension in which a unit of the tensor is one piece of its root's memory, `1 / n_units` of it.
PatchCut cut_of(const ggml_tensor & tensor, int64_t n_units) {
    const ggml_tensor & root = tensor.view_src ? *tensor.view_src : tensor;
    const size_t bytes = ggml_nbytes(&root), unit = bytes / static_cast<size_t>(n_units);
    if (!whole_bytes(root) || !ggml_is_contiguous(&root) || bytes % static_cast<size_t>(n_units) != 0) return {};
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        const int64_t rows = tensor.ne[d] / n_units;
        if (rows < 1 || tensor.ne[d] % n_units != 0 || tensor.nb[d] * static_cast<size_t>(rows) != unit) continue;
        size_t extent = tensor.view_offs + static_cast<size_t>(rows - 1) * tensor.nb[d] + ggml_type_size(tensor.type);
        for (int other = 0; other < GGML_MAX_DIMS; other++)
            if (other != d) extent += static_cast<size_t>(tensor.ne[other] - 1) * tensor.nb[other];
        if (extent <= unit) return {d, rows};
    }
    return {};
}

// Products of other types may take another path, and sum in another order, where there are fewer columns.
bool same_for_any_count(ggml_type type) {
    constexpr std::array types = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q4_0,
                                  GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0};
    return std::find(types.begin(), types.end(), type) != types.end();
}

bool same(const PatchCut & a, const PatchCut & b) {
    return a.dim == b.dim && a.rows == b.rows;
}

class RunFinder {
public:
    RunFinder(const ggml_cgraph & graph, GraphInfo & info, Resolver & resolver)
        : graph_(graph), info_(info), resolver_(resolver) {}

    void run() {
        for (int i = 0; i < graph_.n_nodes; i++) {
            const Node & node = info_.nodes[static_cast<size_t>(i)];
            if (node.view || node.run >= 0) continue;
            if (node.cpu_only || node.tiled || node.partial) {
                open_ = false; // its results come from elsewhere
            } else if (!extend(i) && !embed(i) && !open(i)) {
                info_.nodes[static_cast<size_t>(i)].alone = stands_alone(graph_.nodes[i]->op);
            }
        }
        host_pictures();
    }

private:
    static bool stands_alone(ggml_op op) {
        return op == GGML_OP_FLASH_ATTN_EXT || op == GGML_OP_CPY || op == GGML_OP_CONT || op == GGML_OP_GET_ROWS ||
               op == GGML_OP_IM2COL || op == GGML_OP_POOL_2D;
    }

    bool extend(int i) {
        if (!open_ || info_.nodes[static_cast<size_t>(i)].owner != owner_) return false;
        return add(i);
    }

    bool open(int i) {
        const ggml_tensor & node = *graph_.nodes[i];
        int outer = GGML_MAX_DIMS - 1;
        while (outer > 0 && node.ne[outer] == 1)
            outer--;
        open_ = node.ne[outer] >= kLeastUnits;
        if (!open_) return false;
        info_.runs.emplace_back();
        info_.runs.back().first = i;
        info_.runs.back().n_units = node.ne[outer];
        owner_ = info_.nodes[static_cast<size_t>(i)].owner;
        if (add(i)) return true;
        info_.runs.pop_back();
        return open_ = false;
    }

    bool add(int i) {
        PatchRun & run = info_.runs.back();
        NodeCut cut;
        if (!cut_node(i, run.n_units, cut)) return open_ = false;
        run.cuts.resize(static_cast<size_t>(i - run.first) + 1);
        run.cuts.back() = cut;
        run.last = i;
        run.patches_per_unit = std::max(run.patches_per_unit, static_cast<int64_t>(info_.n_tokens) / run.n_units);
        if (cut.packed_positions) run.positions_unit_bytes = 4 * static_cast<uint64_t>(cut.out.rows) * sizeof(int32_t);
        info_.nodes[static_cast<size_t>(i)].run = static_cast<int>(info_.runs.size()) - 1;
        return true;
    }

    // -- operations that treat patches one by one

    bool cut_node(int i, int64_t n_units, NodeCut & cut) {
        const ggml_tensor & node = *graph_.nodes[i];
        cut.out = cut_of(node, n_units);
        switch (node.op) {
        case GGML_OP_MUL_MAT: return cut_product(i, n_units, cut);
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV: return like_out(node, 0, n_units, cut) && second(node, n_units, cut);
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_L2_NORM: return cut.out.dim >= 1 && like_out(node, 0, n_units, cut);
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_SQR:
        case GGML_OP_UNARY: return like_out(node, 0, n_units, cut);
        case GGML_OP_GLU:
            return cut.out.dim >= 1 && like_out(node, 0, n_units, cut) &&
                   (!node.src[1] || like_out(node, 1, n_units, cut));
        case GGML_OP_ROPE: return cut_rope(i, n_units, cut);
        case GGML_OP_CPY:
        case GGML_OP_CONT: return cut_copy(i, n_units, cut);
        default: return false;
        }
    }

    // Source `s` is cut where the result is.
    bool like_out(const ggml_tensor & node, int s, int64_t n_units, NodeCut & cut) const {
        PatchCut & source = cut.sources[static_cast<size_t>(s)];
        source = cut_of(*node.src[s], n_units);
        return cut.out.dim >= 0 && same(source, cut.out);
    }

    // Of patches too, or the same for all of them.
    bool second(const ggml_tensor & node, int64_t n_units, NodeCut & cut) const {
        const ggml_tensor & other = *node.src[1];
        if (cut.out.dim >= 1 && other.ne[cut.out.dim] == 1) return true;
        return ggml_are_same_shape(&other, &node) && like_out(node, 1, n_units, cut);
    }

    bool cut_product(int i, int64_t n_units, NodeCut & cut) const {
        const ggml_tensor & node = *graph_.nodes[i];
        const bool weight = root_of(node.src[0]).cls == RootClass::weight && same_for_any_count(node.src[0]->type);
        const bool plain = weight && node.src[0]->ne[2] * node.src[0]->ne[3] == 1 && node.ne[2] * node.ne[3] == 1;
        return plain && cut.out.dim == 1 && like_out(node, 1, n_units, cut);
    }

    bool cut_rope(int i, int64_t n_units, NodeCut & cut) const {
        const ggml_tensor &node = *graph_.nodes[i], &positions = *node.src[1];
        const Root & root = root_of(node.src[1]);
        const bool input = root.cls == RootClass::activation && root.producer < 0 && !root.written;
        const bool plain = input && !positions.view_src && positions.type == GGML_TYPE_I32;
        if (!plain || cut.out.dim != 2 || !like_out(node, 0, n_units, cut)) return false;
        cut.packed_positions = (node.op_params[2] & GGML_ROPE_TYPE_MROPE) != 0;
        if (cut.packed_positions) return positions.ne[0] == 4 * node.ne[2];
        cut.sources[1] = {0, cut.out.rows};
        return positions.ne[0] == node.ne[2];
    }

    // A copy may lay the patches out otherwise: as heads of patches, for attention. Its result is kept whole then.
    bool cut_copy(int i, int64_t n_units, NodeCut & cut) {
        const ggml_tensor &node = *graph_.nodes[i], &from = *node.src[0];
        if (!ggml_are_same_shape(&node, &from) || node.view_src || !whole_bytes(node)) return false;
        cut.sources[0] = cut_of(from, n_units);
        if (cut.sources[0].dim < 0) return false;
        if (!same(cut.out, cut.sources[0])) cut.out = cut.sources[0];
        if (node.src[1]) cut.sources[1] = cut.out; // a cast names its own result
        ggml_tensor part = node;
        part.ne[cut.out.dim] /= 2;
        return (!node.src[1] || node.src[1] == &node) && resolver_.device_supports(&part);
    }

    // -- the patch embedding: a picture that is never on the device as a whole, nor what IM2COL makes of it

    bool embed(int i) {
        if (!embeds(i)) return false;
        const ggml_tensor &columns = *graph_.nodes[i], &image = *columns.src[1];
        PatchRun run;
        run.first = i;
        run.n_units = columns.ne[2];
        run.patches_per_unit = columns.ne[1];
        run.embeds = true;
        run.image_unit_bytes =
            static_cast<uint64_t>(columns.src[0]->ne[1]) * image.nb[1] * static_cast<uint64_t>(image.ne[2]);
        for (int next = i; next >= 0; next = next_of_picture(run))
            add_embedding(run, next);
        for (int node = run.first; node <= run.last; node++)
            if (!info_.nodes[static_cast<size_t>(node)].view)
                info_.nodes[static_cast<size_t>(node)].run = static_cast<int>(info_.runs.size());
        info_.runs.push_back(std::move(run));
        open_ = false;
        return true;
    }

    void add_embedding(PatchRun & run, int i) {
        const ggml_tensor & columns = *graph_.nodes[i];
        const PatchEmbedding made{i, next_work(i), copy_of(next_work(i))};
        run.last = made.last();
        run.embeddings.push_back(made);
        const uint64_t values = static_cast<uint64_t>(columns.ne[1] * graph_.nodes[made.product]->ne[1]);
        run.result_unit_bytes = std::max(run.result_unit_bytes, values * sizeof(float));
        run.cuts.resize(static_cast<size_t>(run.last - run.first) + 1);
        run.cuts[static_cast<size_t>(made.columns - run.first)].out = {2, 1};
        NodeCut & product = run.cuts[static_cast<size_t>(made.product - run.first)];
        product.out = {0, columns.ne[1]};
        product.sources[0] = {1, columns.ne[1]};
    }

    // The convolution lays its result out for more than one picture, which changes nothing for one.
    int copy_of(int product) const {
        const int next = next_work(product);
        if (next < 0 || !follows(product, next)) return -1;
        const ggml_tensor &copy = *graph_.nodes[next], &made = *graph_.nodes[product];
        const Root & root = root_of(&made);
        const bool only_reader = !root.escapes && root.last_use == next;
        const bool same = copy.op == GGML_OP_CONT && copy.src[0]->view_src == &made && copy.type == made.type &&
                          ggml_is_contiguous(copy.src[0]) && ggml_nbytes(&copy) == ggml_nbytes(&made);
        return only_reader && same && !copy.view_src && ggml_is_contiguous(&copy) ? next : -1;
    }

    // A second kernel over the same picture (Qwen2-VL's for a second moment): the picture is sent for both at once.
    int next_of_picture(const PatchRun & run) const {
        const int next = next_work(run.last);
        if (next < 0 || !follows(run.first, next) || !embeds(next)) return -1;
        const ggml_tensor &columns = *graph_.nodes[run.first], &other = *graph_.nodes[next];
        const bool same = other.src[1] == columns.src[1] && ggml_are_same_shape(other.src[0], columns.src[0]);
        return same ? next : -1;
    }

    bool follows(int node, int next) const {
        const Node & entry = info_.nodes[static_cast<size_t>(next)];
        const bool apart = entry.cpu_only || entry.tiled || entry.partial;
        return !apart && entry.owner == info_.nodes[static_cast<size_t>(node)].owner;
    }

    int next_work(int i) const {
        for (int j = i + 1; j < graph_.n_nodes; j++)
            if (!info_.nodes[static_cast<size_t>(j)].view) return j;
        return -1;
    }

    bool embeds(int i) const {
        const int at = graph_.nodes[i]->op == GGML_OP_IM2COL ? next_work(i) : -1;
        if (at < 0) return false;
        const ggml_tensor &columns = *graph_.nodes[i], &product = *graph_.nodes[at];
        const ggml_tensor &kernel = *columns.src[0], &image = *columns.src[1];
        const Root &picture = root_of(&image), &made = root_of(&columns);
        const int32_t * p = columns.op_params; // strides, padding, dilation, 2D
        const bool apart = p[0] == kernel.ne[0] && p[1] == kernel.ne[1] && p[2] == 0 && p[3] == 0 && p[4] == 1 &&
                           p[5] == 1 && p[6] == 1;
        const bool input = picture.cls == RootClass::activation && picture.producer < 0 && !picture.written &&
                           !image.view_src && image.type == GGML_TYPE_F32 && image.ne[3] == 1 &&
                           ggml_is_contiguous(&image) && image.ne[1] == columns.ne[2] * kernel.ne[1];
        const Node & node = info_.nodes[static_cast<size_t>(at)];
        const bool multiplied = product.op == GGML_OP_MUL_MAT && !node.cpu_only && !node.partial &&
                                product.src[0]->view_src == &columns && product.src[0]->ne[0] == columns.ne[0] &&
                                product.src[0]->ne[1] == columns.ne[1] * columns.ne[2] &&
                                root_of(product.src[1]).cls == RootClass::weight;
        const bool together = node.owner == info_.nodes[static_cast<size_t>(i)].owner;
        return apart && input && multiplied && together && !made.escapes && made.last_use == at &&
               product.type == GGML_TYPE_F32 && ggml_is_contiguous(&product);
    }

    // Where all that read a picture take it in pieces.
    void host_pictures() {
        std::vector<uint8_t> whole(info_.roots.size(), 0), pieces(info_.roots.size(), 0);
        for (int i = 0; i < graph_.n_nodes; i++) {
            const Node & node = info_.nodes[static_cast<size_t>(i)];
            const bool embeds = node.run >= 0 && info_.runs[static_cast<size_t>(node.run)].embeds;
            for (uint32_t s = 0; s < node.n_sources; s++) {
                const int root = info_.sources[node.first_source + s];
                const bool picture = embeds && graph_.nodes[i]->op == GGML_OP_IM2COL &&
                                     info_.roots[static_cast<size_t>(root)].tensor == graph_.nodes[i]->src[1];
                (picture ? pieces : whole)[static_cast<size_t>(root)] = 1;
            }
        }
        for (size_t r = 0; r < info_.roots.size(); r++)
            if (pieces[r] && !whole[r]) info_.roots[r].hosted = true;
    }

    const Root & root_of(const ggml_tensor * tensor) const {
        const ggml_tensor * root = tensor->view_src ? tensor->view_src : tensor;
        if (by_tensor_.empty())
            for (size_t r = 0; r < info_.roots.size(); r++)
                by_tensor_[info_.roots[r].tensor] = r;
        return info_.roots[by_tensor_.at(root)];
    }

    const ggml_cgraph & graph_;
    GraphInfo & info_;
    Resolver & resolver_;
    mutable std::unordered_map<const ggml_tensor *, size_t> by_tensor_;
    bool open_ = false; // the last run may go on
    int owner_ = -1;
};

} // namespace

namespace {

// The patches are the rows of the first factor there, and kernels choose another path where those do not go by fours.
bool same_path(const PatchRun & run, int64_t units) {
    const auto by_fours = [&](int64_t n) { return n * run.patches_per_unit % 4 == 0; };
    const int64_t rest = run.n_units % units;
    return by_fours(units) == by_fours(run.n_units) && (rest == 0 || by_fours(rest) == by_fours(run.n_units));
}

} // namespace

const PatchEmbedding * PatchRun::embedding_at(int node) const {
    for (const PatchEmbedding & embedding : embeddings)
        if (embedding.has(node)) return &embedding;
    return nullptr;
}

PatchTiles::PatchTiles(const PatchRun & run, int64_t patches) {
    const int64_t least = run.embeds ? 1 : kLeastTile, at_once = run.embeds ? 2 : 1;
    if (run.embeds) patches = std::min(patches, kTilePatches.front());
    const int64_t most = std::max(least, patches / at_once / run.patches_per_unit);
    n_tiles = (run.n_units + most - 1) / most;
    units = (run.n_units + n_tiles - 1) / n_tiles;
    if (run.embeds) {
        while (units > 0 && !same_path(run, units))
            units--;
    } else if (n_tiles > 1) { // parts of tensors begin where devices like them to, and the last tile is not too small
        units = (units + kTileStep - 1) / kTileStep * kTileStep;
        const auto rest_is_small = [&](int64_t n) { return run.n_units % n != 0 && run.n_units % n < kLeastTile; };
        while (units > kLeastTile && rest_is_small(units))
            units -= kTileStep;
        while (rest_is_small(units))
            units += kTileStep;
    }
    if (units == 0) units = run.n_units;
    units = std::min(units, run.n_units);
    n_tiles = (run.n_units + units - 1) / units;
}

TilePlaces::TilePlaces(const PatchRun & run, int64_t units) {
    const auto n = static_cast<uint64_t>(units);
    images[1] = aligned(n * run.image_unit_bytes);
    result = 2 * images[1];
    positions = result + aligned(n * run.result_unit_bytes);
    bytes = positions + aligned(n * run.positions_unit_bytes);
}

void find_patch_runs(const ggml_cgraph & graph, GraphInfo & info, Resolver & resolver) {
    if (info.n_tokens >= kPatchesToTile) RunFinder(graph, info, resolver).run();
}

// Products that are copied from a tile to where they belong.
static void take_no_place(const GraphInfo & info, const PatchSpan & span, std::vector<ScratchItem> & items) {
    for (const PatchEmbedding & embedding : info.runs[static_cast<size_t>(span.run)].embeddings)
        if (embedding.copy >= 0 && embedding.columns >= span.first && embedding.copy <= span.last)
            items[static_cast<size_t>(info.nodes[static_cast<size_t>(embedding.product)].root)].first = -1;
}

bool lives_in_tile(const GraphInfo & info, int r, const PatchSpan & span) {
    const Root & root = info.roots[static_cast<size_t>(r)];
    if (span.run < 0 || root.cls != RootClass::activation || root.hosted || root.escapes) return false;
    if (root.producer < span.first || root.last_use > span.last) return false;
    const PatchRun & run = info.runs[static_cast<size_t>(span.run)];
    if (run.embeds) return root.tensor->op == GGML_OP_IM2COL;
    return cut_of(*root.tensor, run.n_units).dim >= 0;
}

void fit_to_spans(const GraphInfo & info, const std::vector<PatchSpan> & spans, int64_t tile_patches,
                  std::vector<ScratchItem> & items) {
    std::vector<int> end(info.nodes.size());
    for (size_t i = 0; i < end.size(); i++)
        end[i] = static_cast<int>(i);
    for (const PatchSpan & span : spans)
        std::fill(end.begin() + span.first, end.begin() + span.last + 1, span.last);
    // Kernels fuse what is submitted together, and nothing else: behind that a place is free.
    for (size_t r = 0; r < info.roots.size(); r++) {
        const Root & root = info.roots[r];
        const int last = std::max(root.last_use, root.keep_until);
        if (items[r].first >= 0 && !root.escapes && last >= 0)
            items[r].last = std::min(items[r].last, end[static_cast<size_t>(last)]);
    }
    for (const PatchSpan & span : spans) {
        items.emplace_back();
        if (span.run < 0) continue;
        take_no_place(info, span, items);
        const PatchRun & run = info.runs[static_cast<size_t>(span.run)];
        const PatchTiles tiles(run, tile_patches);
        if (tiles.n_tiles == 1 && !run.embeds) continue;
        items.back() = {TilePlaces(run, tiles.units).bytes, span.first, span.last};
        if (items.back().bytes == 0) items.back().first = -1;
        for (size_t r = 0; r < info.roots.size(); r++) {
            ScratchItem & item = items[r];
            if (item.first < 0 || item.first > span.last || item.last < span.first) continue;
            if (lives_in_tile(info, static_cast<int>(r), span)) {
                const auto n = static_cast<uint64_t>(run.n_units);
                item.bytes = aligned((item.bytes + n - 1) / n * static_cast<uint64_t>(tiles.units));
                if (run.embeds) item.last = info.roots[r].last_use; // the next one's columns take its place
            } else {                                                // every tile reads or writes its part
                item.first = std::min(item.first, std::max(span.first, 0));
                item.last = std::max(item.last, span.last);
            }
        }
    }
}

} // namespace xlm
