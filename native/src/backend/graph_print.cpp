#include "graph_print.hpp"

#include <algorithm>
#include <tuple>

namespace xlm {

GraphPrint::Seen::Seen(const ggml_tensor & tensor)
    : type(tensor.type), op(tensor.op), flags(tensor.flags), view_src(tensor.view_src), view_offs(tensor.view_offs),
      data(tensor.data), buffer(tensor.buffer) {
    std::copy(std::begin(tensor.ne), std::end(tensor.ne), ne.begin());
    std::copy(std::begin(tensor.nb), std::end(tensor.nb), nb.begin());
}

bool GraphPrint::Seen::operator==(const Seen & other) const {
    const auto all = [](const Seen & seen) {
        return std::tie(seen.data, seen.ne, seen.nb, seen.op, seen.type, seen.flags, seen.view_src, seen.view_offs,
                        seen.buffer);
    };
    return all(*this) == all(other);
}

GraphPrint::SeenNode::SeenNode(const ggml_cgraph & graph, int i)
    : tensor(graph.nodes[i]), n_users(ggml_node_get_use_count(&graph, i)), seen(*tensor) {
    std::copy(std::begin(tensor->op_params), std::end(tensor->op_params), params.begin());
    std::copy(std::begin(tensor->src), std::end(tensor->src), sources.begin());
}

bool GraphPrint::SeenNode::operator==(const SeenNode & other) const {
    return tensor == other.tensor && n_users == other.n_users && seen == other.seen && params == other.params &&
           sources == other.sources;
}

GraphPrint::GraphPrint(const ggml_cgraph & graph) {
    nodes_.reserve(static_cast<size_t>(graph.n_nodes));
    sources_.reserve(3 * nodes_.capacity());
    for (int i = 0; i < graph.n_nodes; i++) {
        nodes_.emplace_back(graph, i);
        for (const ggml_tensor * source : graph.nodes[i]->src)
            if (source) sources_.emplace_back(*source);
    }
}

bool GraphPrint::matches(const ggml_cgraph & graph) const {
    if (nodes_.size() != static_cast<size_t>(graph.n_nodes)) return false;
    auto seen = sources_.begin();
    for (int i = 0; i < graph.n_nodes; i++) {
        if (graph.nodes[i] != nodes_[static_cast<size_t>(i)].tensor) return false; // before it is looked into
        if (!(nodes_[static_cast<size_t>(i)] == SeenNode(graph, i))) return false;
        for (const ggml_tensor * source : graph.nodes[i]->src)
            if (source && !(*seen++ == Seen(*source))) return false;
    }
    return true;
}

} // namespace xlm
