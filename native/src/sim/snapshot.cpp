#include "snapshot.hpp"

namespace xlm::sim {

GraphSnapshot::GraphSnapshot(const ggml_cgraph & graph) {
    Index index;
    copy_tensors(graph, index);
    relink(index);
    nodes_.reserve(static_cast<size_t>(graph.n_nodes));
    for (int i = 0; i < graph.n_nodes; i++)
        nodes_.push_back(&tensors_[index.at(graph.nodes[i])]);
    graph_.size = graph_.n_nodes = graph.n_nodes;
    graph_.nodes = nodes_.data();
    graph_.order = graph.order;
    graph_.uid = 0; // not the caller's graph any more: nothing may be cached under its id
    copy_use_counts(graph);
}

void GraphSnapshot::copy_tensors(const ggml_cgraph & graph, Index & index) {
    std::vector<const ggml_tensor *> order;
    const auto add = [&](const ggml_tensor * tensor) {
        if (tensor && index.emplace(tensor, order.size()).second) order.push_back(tensor);
    };
    for (int i = 0; i < graph.n_nodes; i++) {
        add(graph.nodes[i]);
        for (const ggml_tensor * src : graph.nodes[i]->src)
            add(src);
    }
    // ggml keeps view chains flat: the root of a view is never a view.
    for (size_t i = 0, n = order.size(); i < n; i++)
        add(order[i]->view_src);
    tensors_.reserve(order.size());
    for (const ggml_tensor * tensor : order)
        tensors_.push_back(*tensor);
}

void GraphSnapshot::relink(const Index & index) {
    const auto copy_of = [&](const ggml_tensor * tensor) -> ggml_tensor * {
        const auto found = tensor ? index.find(tensor) : index.end();
        return found == index.end() ? nullptr : &tensors_[found->second];
    };
    for (ggml_tensor & tensor : tensors_) {
        for (ggml_tensor *& src : tensor.src)
            src = copy_of(src);
        tensor.view_src = copy_of(tensor.view_src);
    }
}

void GraphSnapshot::copy_use_counts(const ggml_cgraph & graph) {
    const size_t size = ggml_hash_size(2 * tensors_.size() + 1);
    keys_.assign(size, nullptr);
    used_.assign(ggml_bitset_size(size), 0);
    use_counts_.assign(size, 0);
    graph_.visited_hash_set = {size, used_.data(), keys_.data()};
    graph_.use_counts = use_counts_.data();
    const bool counted = graph.use_counts && graph.visited_hash_set.size > 0;
    for (int i = 0; i < graph.n_nodes; i++) {
        const size_t slot = ggml_hash_find_or_insert(&graph_.visited_hash_set, nodes_[static_cast<size_t>(i)]);
        use_counts_[slot] = counted ? ggml_node_get_use_count(&graph, i) : 0;
    }
}

} // namespace xlm::sim
