#include "analyse.hpp"

#include "attention_tiles.hpp"
#include "experts_graph.hpp"
#include "input_pack.hpp"

#include "ggml-impl.h"

#include <algorithm>
#include <unordered_map>

namespace xlm {

bool is_view_op(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

namespace {

bool is_norm(ggml_op op) {
    return op == GGML_OP_RMS_NORM || op == GGML_OP_NORM || op == GGML_OP_GROUP_NORM;
}

bool reads(const ggml_tensor * node, const ggml_tensor * what) {
    return std::find(std::begin(node->src), std::end(node->src), what) != std::end(node->src);
}

// libmtmd casts an F16 mask to F16 once more for every layer. Attention reads the original instead, as long as
// something behind it still does, so that its memory is its own; the copy then does nothing.
class MaskCopies {
public:
    explicit MaskCopies(const ggml_cgraph & graph) : graph_(graph) {}

    void drop() {
        for (int i = 0; i < graph_.n_nodes; i++)
            if (is_copy(*graph_.nodes[i])) drop(i);
    }

private:
    static bool is_copy(const ggml_tensor & node) {
        return node.op == GGML_OP_CPY && node.type == GGML_TYPE_F16 && node.src[0]->type == GGML_TYPE_F16 &&
               ggml_nbytes(&node) > kMaskStageBytes && ggml_are_same_shape(&node, node.src[0]) && !node.view_src &&
               ggml_is_contiguous(&node) && ggml_is_contiguous(node.src[0]) && !(node.flags & GGML_TENSOR_FLAG_OUTPUT);
    }

    void drop(int i) {
        ggml_tensor * copy = graph_.nodes[i];
        const int last = last_reader(copy->src[0]);
        for (int j = i + 1; j < graph_.n_nodes; j++) {
            const ggml_tensor * node = graph_.nodes[j];
            const bool as_mask = node->op == GGML_OP_FLASH_ATTN_EXT && node->src[3] == copy && j < last;
            if (reads(node, copy) && !as_mask) return;
        }
        for (int j = i + 1; j < graph_.n_nodes; j++)
            if (reads(graph_.nodes[j], copy)) graph_.nodes[j]->src[3] = copy->src[0];
        copy->op = GGML_OP_NONE;
    }

    int last_reader(const ggml_tensor * what) const {
        for (int j = graph_.n_nodes - 1; j >= 0; j--)
            if (reads(graph_.nodes[j], what)) return j;
        return -1;
    }

    const ggml_cgraph & graph_;
};

class Analysis {
public:
    Analysis(const ggml_cgraph & graph, Resolver & resolver) : graph_(graph), resolver_(resolver) {}

    GraphInfo run() {
        drop_mask_copies(graph_);
        info_.uid = graph_.uid;
        info_.nodes_pointer = graph_.nodes;
        info_.nodes.resize(static_cast<size_t>(graph_.n_nodes));
        owners_.assign(info_.nodes.size(), nullptr);
        for (int i = 0; i < graph_.n_nodes; i++)
            visit(i);
        find_escapes();
        find_units();
        find_vision();
        for (size_t r = 0; r < info_.roots.size(); r++)
            if (info_.roots[r].cls == RootClass::activation && info_.roots[r].producer < 0)
                info_.inputs.push_back(static_cast<int>(r));
        return std::move(info_);
    }

private:
    int root_of(ggml_tensor * tensor) {
        ggml_tensor * root = tensor->view_src ? tensor->view_src : tensor;
        const auto [it, fresh] = root_index_.try_emplace(root, static_cast<int>(info_.roots.size()));
        if (fresh) add_root(root);
        return it->second;
    }

    void add_root(ggml_tensor * tensor) {
        Root root;
        root.tensor = tensor;
        root.cls = resolver_.classify(tensor, root.weight, root.state);
        if (root.cls == RootClass::activation) root.device_bytes = resolver_.device_bytes(tensor);
        info_.roots.push_back(root);
    }

    void visit(int i) {
        ggml_tensor * node = graph_.nodes[i];
        Node & entry = info_.nodes[static_cast<size_t>(i)];
        entry.view = is_view_op(node->op);
        entry.first_source = static_cast<uint32_t>(info_.sources.size());
        for (ggml_tensor * source : node->src) {
            if (!source) continue;
            uses_[source]++;
            read(i, source);
        }
        entry.n_sources = static_cast<uint32_t>(info_.sources.size()) - entry.first_source;
        const int own = root_of(node);
        touch(own, i);
        if (!entry.view) write(i, own);
        if (node->op == GGML_OP_MUL_MAT && info_.n_tokens == 0)
            info_.n_tokens = static_cast<uint32_t>(node->src[1]->ne[1]);
    }

    void touch(int root, int node) { info_.roots[static_cast<size_t>(root)].last_use = node; }

    void read(int i, ggml_tensor * source) {
        const int root = root_of(source);
        touch(root, i);
        Node & entry = info_.nodes[static_cast<size_t>(i)];
        if (entry.view) return;
        info_.sources.push_back(root);
        const Root & data = info_.roots[static_cast<size_t>(root)];
        if (data.cls == RootClass::foreign) entry.cpu_only = true;
        if (data.cls == RootClass::weight && !multiplied(i, source))
            info_.roots[static_cast<size_t>(root)].by_rows = false;
        if (data.cls == RootClass::weight) read_weight(i, *data.weight);
        if (data.cls == RootClass::state) read_state(i, source, root);
    }

    // A 2D matrix as it is, times anything, into memory of its own.
    bool multiplied(int i, const ggml_tensor * source) const {
        const ggml_tensor * node = graph_.nodes[i];
        return node->op == GGML_OP_MUL_MAT && node->src[0] == source && node->src[1] != source && !source->view_src &&
               !node->view_src && source->ne[2] * source->ne[3] == 1 && ggml_is_contiguous(source) &&
               ggml_is_contiguous(node);
    }

    void read_state(int i, const ggml_tensor * source, int root) {
        Root & data = info_.roots[static_cast<size_t>(root)];
        const ggml_tensor * node = graph_.nodes[i];
        const size_t begin = source->view_src ? source->view_offs : 0;
        const bool target = node->op == GGML_OP_SET_ROWS && source == node->src[2]; // only written to
        if (!target) data.reads.add({begin, begin + ggml_nbytes(source)});
        if (data.state->sublayer && !owners_[static_cast<size_t>(i)])
            owners_[static_cast<size_t>(i)] = data.state->sublayer;
    }

    void read_weight(int i, Weight & weight) {
        const ggml_op op = graph_.nodes[i]->op;
        SubLayer & sublayer = *weight.sublayer;
        const bool by_row =
            op == GGML_OP_GET_ROWS && sublayer.kind != XLM_KIND_SMALL && sublayer.kind != XLM_KIND_EXPERTS;
        if (sublayer.kind == XLM_KIND_LOOKUP || by_row) {
            info_.nodes[static_cast<size_t>(i)].cpu_only = true; // a table of rows is read where it lies
            return;
        }
        sublayer.seen_multiplied = true;
        if (sublayer.kind != XLM_KIND_SMALL) owners_[static_cast<size_t>(i)] = &sublayer;
    }

    void write(int i, int own) {
        ggml_tensor * node = graph_.nodes[i];
        Node & entry = info_.nodes[static_cast<size_t>(i)];
        Root & root = info_.roots[static_cast<size_t>(own)];
        entry.root = own;
        entry.partial = node->view_src != nullptr;
        root.written = true;
        if (root.cls == RootClass::activation) {
            if (!entry.partial) root.producer = i;
        } else if (root.cls == RootClass::state) {
            write_state(i, own);
        } else {
            entry.cpu_only = true; // writes into weights
        }
        if (!entry.cpu_only && !resolver_.device_supports(node)) entry.cpu_only = true;
    }

    void write_state(int i, int own) {
        ggml_tensor * node = graph_.nodes[i];
        const bool by_row = node->op == GGML_OP_SET_ROWS && node->src[1]->op == GGML_OP_NONE && !node->src[1]->view_src;
        info_.state_writes.push_back({i, own, by_row ? node->src[1] : nullptr});
        if (node->op != GGML_OP_SET_ROWS) info_.replayable = false;
        if (State * state = info_.roots[static_cast<size_t>(own)].state;
            state->sublayer && !owners_[static_cast<size_t>(i)])
            owners_[static_cast<size_t>(i)] = state->sublayer;
    }

    // Results that live on: flagged, used by nodes outside of this graph, used by nobody here,
    // or written into memory that was there before.
    void find_escapes() {
        for (int i = 0; i < graph_.n_nodes; i++) {
            const ggml_tensor * node = graph_.nodes[i];
            const int uses = ggml_node_get_use_count(&graph_, i), here = uses_[node];
            if (!(node->flags & GGML_TENSOR_FLAG_OUTPUT) && uses <= here && here > 0) continue;
            info_.roots[static_cast<size_t>(root_index_[node->view_src ? node->view_src : node])].escapes = true;
        }
        for (Root & root : info_.roots)
            if (root.producer < 0 && root.written) root.escapes = true;
    }

    // Where the sub-layer of node i begins, the one before having ended at node `after`: behind the last norm
    // between them and its scale. Backends fuse the residual ADD with the norm after it and the norm with its
    // scale; a cut inside would round differently from a graph without one.
    int border(int after, int i) const {
        for (int j = i; j > after; j--)
            if (is_norm(graph_.nodes[j]->op)) return std::min(i, j + (is_scaled(j) ? 2 : 1));
        return i;
    }

    bool is_scaled(int norm) const {
        if (norm + 1 >= graph_.n_nodes) return false;
        const ggml_tensor * next = graph_.nodes[norm + 1];
        return next->op == GGML_OP_MUL && next->src[0] == graph_.nodes[norm];
    }

    void find_units() {
        int last_owned = -1;
        for (int i = 0; i < graph_.n_nodes; i++) {
            SubLayer * owner = owners_[static_cast<size_t>(i)];
            if (!owner) continue;
            if (info_.units.empty())
                info_.units.push_back({0, i, owner});
            else if (info_.units.back().sublayer != owner)
                start_unit(border(last_owned, i), owner);
            last_owned = i;
        }
        if (info_.units.empty() && graph_.n_nodes > 0) info_.units.push_back({0, 0, nullptr});
        if (!info_.units.empty()) info_.units.back().last = graph_.n_nodes - 1;
        for (size_t u = 0; u < info_.units.size(); u++)
            for (int i = info_.units[u].first; i <= info_.units[u].last; i++)
                info_.nodes[static_cast<size_t>(i)].owner = static_cast<int>(u);
    }

    void start_unit(int first, SubLayer * owner) {
        info_.units.back().last = first - 1;
        info_.units.push_back({first, first, owner});
    }

    // -- vision graphs: no mask of patches times patches on the device

    void find_vision() {
        for (const Unit & unit : info_.units)
            info_.vision |= unit.sublayer && unit.sublayer->vision;
        if (!info_.vision) return;
        info_.n_tokens = 0; // patches: the first matrix multiplication is a convolution's
        for (int i = 0; i < graph_.n_nodes; i++) {
            const ggml_tensor * node = graph_.nodes[i];
            const ggml_tensor * wide = node->op == GGML_OP_FLASH_ATTN_EXT ? node->src[0]
                                       : node->op == GGML_OP_MUL_MAT      ? node->src[1]
                                                                          : nullptr;
            if (wide) info_.n_tokens = std::max(info_.n_tokens, static_cast<uint32_t>(wide->ne[1]));
            if (node->op != GGML_OP_FLASH_ATTN_EXT) continue;
            if (info_.nodes[static_cast<size_t>(i)].cpu_only) info_.n_attention_cpu++;
            if (has_large_mask(*graph_.nodes[i])) info_.roots[static_cast<size_t>(mask_root(i))].hosted = true;
        }
        for (int i = graph_.n_nodes - 1; i >= 0; i--)
            keep_whole_if_read(i);
        for (int i = graph_.n_nodes - 1; i >= 0; i--)
            mark_tiled(i);
        for (int i = graph_.n_nodes - 1; i >= 0; i--)
            make_where_read(i);
        for (int i = 0; i < graph_.n_nodes; i++)
            info_.nodes[static_cast<size_t>(i)].casts_mask = casts_mask(i);
        if (info_.stage >= 0) as_bytes(*info_.stage_tensor, info_.roots[static_cast<size_t>(info_.stage)].device_bytes);
    }

    // From F32, or from F16 as each layer does.
    bool casts_mask(int i) {
        const ggml_tensor &node = *graph_.nodes[i], *from = node.src[0];
        const Node & entry = info_.nodes[static_cast<size_t>(i)];
        if (node.op != GGML_OP_CPY || !makes_mask(entry) || node.type != GGML_TYPE_F16) return false;
        const bool known = from->type == GGML_TYPE_F32 || from->type == GGML_TYPE_F16;
        const bool plain = known && !node.view_src && !from->view_src && ggml_are_same_shape(&node, from) &&
                           ggml_is_contiguous(&node) && ggml_is_contiguous(from);
        if (!plain || info_.roots[static_cast<size_t>(entry.root)].escapes || info_.stage < 0) return false;
        const Root & source = info_.roots[static_cast<size_t>(root_of(graph_.nodes[i]->src[0]))];
        const bool input = source.cls == RootClass::activation && source.producer < 0 && !source.written;
        return input || (source.producer >= 0 && info_.nodes[static_cast<size_t>(source.producer)].casts_mask);
    }

    bool makes_mask(const Node & entry) const {
        return !entry.view && entry.root >= 0 && info_.roots[static_cast<size_t>(entry.root)].hosted;
    }

    int mask_root(int i) { return root_of(graph_.nodes[i]->src[3]); }

    static bool has_large_mask(const ggml_tensor & node) {
        const ggml_tensor * mask = node.src[3];
        if (!mask || mask->type != GGML_TYPE_F16 || !ggml_is_contiguous(mask) || mask->view_src) return false;
        const bool plain = mask->ne[2] * mask->ne[3] == 1 && node.src[0]->ne[3] == 1 && ggml_is_contiguous(&node);
        return plain && mask->ne[1] == node.src[0]->ne[1] && mask->ne[0] == node.src[1]->ne[1] &&
               ggml_nbytes(mask) > kMaskStageBytes;
    }

    // Anything but attention reads it: then it is an activation like others.
    void keep_whole_if_read(int i) {
        const Node & entry = info_.nodes[static_cast<size_t>(i)];
        if (makes_mask(entry)) return; // it will run on the CPU
        const bool attention = graph_.nodes[i]->op == GGML_OP_FLASH_ATTN_EXT;
        for (uint32_t s = 0; s < entry.n_sources; s++) {
            const int r = info_.sources[entry.first_source + s];
            const bool as_mask = attention && has_large_mask(*graph_.nodes[i]) && r == mask_root(i);
            if (r == entry.root) continue; // a cast names its own result as a source
            if (!as_mask && !entry.cpu_only) info_.roots[static_cast<size_t>(r)].hosted = false;
        }
    }

    void mark_tiled(int i) {
        Node & entry = info_.nodes[static_cast<size_t>(i)];
        if (makes_mask(entry)) entry.cpu_only = true;
        if (entry.cpu_only || graph_.nodes[i]->op != GGML_OP_FLASH_ATTN_EXT || !has_large_mask(*graph_.nodes[i]))
            return;
        entry.tiled = info_.roots[static_cast<size_t>(mask_root(i))].hosted;
        if (entry.tiled) note_stage(i);
    }

    // A mask comes to attention by casts: all of them run where the last one does.
    void make_where_read(int i) {
        Node & entry = info_.nodes[static_cast<size_t>(i)];
        if (entry.view || entry.root < 0 || graph_.nodes[i]->op != GGML_OP_CPY) return;
        if (ggml_nbytes(graph_.nodes[i]) <= kMaskStageBytes || read_by_device(entry.root, i)) return;
        entry.cpu_only = true;
    }

    bool read_by_device(int root, int made_by) {
        for (int i = made_by + 1; i < graph_.n_nodes; i++) {
            const Node & entry = info_.nodes[static_cast<size_t>(i)];
            if (entry.cpu_only || (entry.tiled && root == mask_root(i))) continue;
            for (uint32_t s = 0; s < entry.n_sources; s++)
                if (info_.sources[entry.first_source + s] == root) return true;
        }
        return false;
    }

    void note_stage(int i) {
        if (info_.stage < 0) {
            info_.stage = static_cast<int>(info_.roots.size());
            info_.stage_tensor = std::make_unique<ggml_tensor>();
            Root root;
            root.tensor = info_.stage_tensor.get();
            info_.roots.push_back(root);
        }
        Root & stage = info_.roots[static_cast<size_t>(info_.stage)];
        stage.device_bytes =
            std::max(stage.device_bytes, tile_stage_bytes(graph_.nodes[i]->src[3]->ne[0], kMaskStageBytes));
        stage.producer = i; // they come last first
        stage.last_use = std::max(stage.last_use, i);
    }

    const ggml_cgraph & graph_;
    Resolver & resolver_;
    GraphInfo info_;
    std::unordered_map<const ggml_tensor *, int> root_index_;
    std::unordered_map<const ggml_tensor *, int> uses_;
    std::vector<SubLayer *> owners_;
};

bool sorts(const ggml_cgraph & graph) {
    return std::any_of(graph.nodes, graph.nodes + graph.n_nodes, [](const ggml_tensor * node) {
        return node->op == GGML_OP_ARGSORT || node->op == GGML_OP_TOP_K;
    });
}

void extend(ScratchItem & item, int node) {
    if (item.first < 0) item.first = node;
}

} // namespace

void drop_mask_copies(const ggml_cgraph & graph) {
    MaskCopies(graph).drop();
}

GraphInfo analyse_graph(const ggml_cgraph & graph, Resolver & resolver) {
    GraphInfo info = Analysis(graph, resolver).run();
    info.experts = find_expert_groups(graph, info);
    if (info.vision) find_patch_runs(graph, info, resolver);
    info.fusion_reach = info.vision || sorts(graph) ? kFusionReach : kPlainFusionReach;
    std::vector<uint8_t> all(info.nodes.size());
    for (size_t i = 0; i < all.size(); i++)
        all[i] = !info.nodes[i].cpu_only;
    std::vector<ScratchItem> items = scratch_items(info, all);
    for (int r : info.inputs) // uploaded ahead of their first use, by as much as a segment
        if (items[static_cast<size_t>(r)].first > 0) items[static_cast<size_t>(r)].first = 0;
    for (const ExpertGroup & group : info.experts)
        items.push_back({expert_scratch(group).bytes, group.first, group.last + kFusionReach});
    if (info.vision)
        fit_to_spans(info, vision_spans(info, all, 0), kTilePatches.front(), items);
    else
        pack_inputs(info, all, items);
    info.scratch_need_bytes = plan_scratch(items, 256).peak_bytes;
    return info;
}

std::vector<PatchSpan> vision_spans(const GraphInfo & info, const std::vector<uint8_t> & on_device, int from) {
    std::vector<PatchSpan> spans;
    const Node * before = nullptr;
    for (int i = from; i < static_cast<int>(info.nodes.size()); i++) {
        const Node & node = info.nodes[static_cast<size_t>(i)];
        if (node.view) {
            if (!spans.empty()) spans.back().last = i;
            continue;
        }
        const bool device = on_device[static_cast<size_t>(i)];
        const bool same = before && before->owner == node.owner && !cut_between(info, *before, node) &&
                          device == static_cast<bool>(on_device[static_cast<size_t>(before - info.nodes.data())]);
        if (!same) spans.push_back({spans.empty() ? from : i, i, device ? node.run : -1});
        spans.back().last = i;
        before = &node;
    }
    return spans;
}

bool cut_between(const GraphInfo & info, const Node & before, const Node & after) {
    if (info.runs.empty()) return before.tiled || after.tiled;
    return before.run != after.run || before.tiled || after.tiled || before.alone || after.alone;
}

std::vector<ScratchItem> scratch_items(const GraphInfo & info, const std::vector<uint8_t> & on_device) {
    std::vector<ScratchItem> items(info.roots.size());
    for (size_t i = 0; i < info.nodes.size(); i++) {
        const Node & node = info.nodes[i];
        if (!on_device[i] || node.view) continue;
        for (uint32_t s = 0; s < node.n_sources; s++)
            extend(items[static_cast<size_t>(info.sources[node.first_source + s])], static_cast<int>(i));
        if (node.root >= 0) extend(items[static_cast<size_t>(node.root)], static_cast<int>(i));
        if (node.tiled) extend(items[static_cast<size_t>(info.stage)], static_cast<int>(i));
    }
    for (size_t r = 0; r < items.size(); r++) {
        const Root & root = info.roots[r];
        if (root.cls != RootClass::activation || root.hosted) items[r].first = -1;
        // Kept to the last use anywhere, so that a result is never lost before a CPU node or the end fetches it.
        items[r].last = root.escapes ? static_cast<int>(info.nodes.size())
                                     : std::max(root.last_use, root.keep_until) + info.fusion_reach;
        items[r].bytes = root.device_bytes;
    }
    return items;
}

} // namespace xlm
