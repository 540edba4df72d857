#include "experts_graph.hpp"

#include "ggml-impl.h"

#include <algorithm>

namespace xlm {

namespace {

// Of one launch. Kernels keep an index a pair in shared memory or in a grid dimension of at most 65535.
constexpr uint32_t kMaxPairs = 2048;

// Rows stay rows: what these compute of a pair depends on that pair alone.
bool is_by_row(ggml_op op) {
    switch (op) {
    case GGML_OP_MUL_MAT_ID:
    case GGML_OP_ADD_ID:
    case GGML_OP_GET_ROWS:
    case GGML_OP_REPEAT:
    case GGML_OP_GLU:
    case GGML_OP_UNARY:
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
    case GGML_OP_SQRT:
    case GGML_OP_ADD:
    case GGML_OP_MUL: return true;
    default: return is_view_op(op);
    }
}

class Finder {
public:
    Finder(const ggml_cgraph & graph, GraphInfo & info) : graph_(graph), info_(info) {}

    std::vector<ExpertGroup> run() {
        std::vector<ExpertGroup> groups;
        for (size_t u = 0; u < info_.units.size(); u++) {
            const Unit & unit = info_.units[u];
            if (!unit.sublayer || !unit.sublayer->experts) continue;
            ExpertGroup group;
            group.unit = static_cast<int>(u);
            group.sublayer = unit.sublayer;
            if (collect(group, unit) && fill(group)) groups.push_back(std::move(group));
        }
        return groups;
    }

private:
    const Root & root_read(int node, uint32_t s) const {
        const Node & entry = info_.nodes[static_cast<size_t>(node)];
        return info_.roots[static_cast<size_t>(info_.sources[entry.first_source + s])];
    }

    bool reads_experts(int i, const SubLayer * sublayer) const {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        for (uint32_t s = 0; s < node.n_sources && !node.view; s++)
            if (root_read(i, s).weight && root_read(i, s).weight->sublayer == sublayer) return true;
        return false;
    }

    // All uses of the experts in the unit must be plain MUL_MAT_IDs by the same ids.
    bool collect(ExpertGroup & group, const Unit & unit) const {
        for (int i = unit.first; i <= unit.last; i++) {
            if (!reads_experts(i, unit.sublayer)) continue;
            if (!add_matmul(group, i)) return false;
        }
        return !group.matmuls.empty();
    }

    bool add_matmul(ExpertGroup & group, int i) const {
        const ggml_tensor * node = graph_.nodes[i];
        if (node->op != GGML_OP_MUL_MAT_ID || (group.ids && node->src[2] != group.ids)) return false;
        const auto & weights = group.sublayer->weights;
        const auto at = std::find_if(weights.begin(), weights.end(),
                                     [&](const auto & weight) { return weight->tensor == node->src[0]; });
        if (at == weights.end() || !rows_are_even(*node->src[1]) || !plain_result(*node)) return false;
        group.ids = node->src[2];
        group.matmuls.push_back({i, at->get(), static_cast<size_t>(at - weights.begin())});
        return group.ids->type == GGML_TYPE_I32 && group.ids->ne[2] * group.ids->ne[3] == 1;
    }

    static bool rows_are_even(const ggml_tensor & input) {
        return input.type == GGML_TYPE_F32 && input.nb[0] == sizeof(float) && input.ne[3] == 1 &&
               (input.ne[2] == 1 || input.nb[2] == input.nb[1] * static_cast<size_t>(input.ne[1]));
    }

    static bool plain_result(const ggml_tensor & node) {
        return node.type == GGML_TYPE_F32 && !node.view_src && ggml_is_contiguous(&node);
    }

    bool fill(ExpertGroup & group) {
        group.first = group.matmuls.front().node;
        group.last = group.matmuls.back().node;
        group.n_used = static_cast<uint32_t>(group.ids->ne[0]);
        group.n_tokens = static_cast<uint32_t>(group.ids->ne[1]);
        group.by_row = true;
        for (int i = group.first; i <= group.last; i++) {
            const Node & node = info_.nodes[static_cast<size_t>(i)];
            if (node.cpu_only || changes_input(node, group.first)) return false;
            group.by_row &= is_by_row(graph_.nodes[i]->op);
            if (!node.view) collect_roots(group, i, node);
        }
        for (int r : group.inputs) {
            Root & root = info_.roots[static_cast<size_t>(r)];
            root.keep_until = std::max(root.keep_until, group.last);
        }
        for (const ExpertMatmul & matmul : group.matmuls) {
            const int64_t per_token = graph_.nodes[matmul.node]->src[1]->ne[1];
            if (per_token != 1 && per_token != group.n_used) return false;
        }
        return group.ids_root >= 0;
    }

    // A core that was stopped half-way starts again from the same inputs.
    bool changes_input(const Node & node, int first) const {
        return !node.view && node.root >= 0 && info_.roots[static_cast<size_t>(node.root)].producer < first;
    }

    void collect_roots(ExpertGroup & group, int i, const Node & node) {
        for (uint32_t s = 0; s < node.n_sources; s++) {
            const int r = info_.sources[node.first_source + s];
            const Root & root = info_.roots[static_cast<size_t>(r)];
            const bool before = root.cls == RootClass::activation && root.producer < group.first;
            if (before && std::find(group.inputs.begin(), group.inputs.end(), r) == group.inputs.end())
                group.inputs.push_back(r);
            const ggml_tensor * ids = group.ids->view_src ? group.ids->view_src : group.ids;
            if (before && root.tensor == ids) group.ids_root = r;
        }
        if (node.root < 0) return;
        // Rows that the CPU computed are put into the last result only.
        const Root & own = info_.roots[static_cast<size_t>(node.root)];
        const bool inside = own.cls == RootClass::activation && own.last_use <= group.last && !own.escapes &&
                            own.producer >= group.first;
        if (i != group.last && !inside) group.by_row = false;
    }

    const ggml_cgraph & graph_;
    GraphInfo & info_;
};

uint64_t aligned(uint64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

} // namespace

std::vector<ExpertGroup> find_expert_groups(const ggml_cgraph & graph, GraphInfo & info) {
    return Finder(graph, info).run();
}

ExpertScratch expert_scratch(const ExpertGroup & group) {
    ExpertScratch scratch;
    scratch.pairs_per_pass = std::clamp(group.n_pairs(), 1U, kMaxPairs); // a prompt without outputs has none at its end
    uint64_t row_bytes = 0, result_bytes = 0;
    for (const ExpertMatmul & matmul : group.matmuls) {
        const ggml_tensor * weight = matmul.weight->tensor;
        row_bytes = std::max<uint64_t>(row_bytes, static_cast<uint64_t>(weight->ne[0]) * sizeof(float));
        result_bytes = std::max<uint64_t>(result_bytes, static_cast<uint64_t>(weight->ne[1]) * sizeof(float));
    }
    const auto place = [&](uint64_t & offset, uint64_t bytes) {
        offset = scratch.bytes;
        scratch.bytes += aligned(bytes);
    };
    // Every launch begins at an aligned index: at most one a batch of one expert, and where a launch is full.
    const uint64_t n_launches = group.sublayer->experts->n_experts + 2 * group.n_pairs() / scratch.pairs_per_pass + 2;
    const uint64_t index_bytes = (group.n_pairs() + 64 * n_launches) * sizeof(int32_t);
    place(scratch.slot_ids, index_bytes);
    place(scratch.tokens, index_bytes);
    place(scratch.pairs, index_bytes);
    place(scratch.local_ids, index_bytes);
    place(scratch.rows, row_bytes * scratch.pairs_per_pass);
    place(scratch.results, result_bytes * scratch.pairs_per_pass);
    return scratch;
}

} // namespace xlm
