// A copy of a graph that no longer depends on the caller's tensors.
#pragma once

#include "ggml-impl.h"

#include <memory>
#include <unordered_map>
#include <vector>

namespace xlm::sim {

// Nodes, their sources and view roots by value; use counts in a hash set of its
// own, so that ggml-cpu still fuses what it would fuse. Data and buffer pointers
// are those of the moment: the memory itself must outlive the computation.
class GraphSnapshot {
public:
    explicit GraphSnapshot(const ggml_cgraph & graph);
    ggml_cgraph & graph() { return graph_; }
    const std::vector<ggml_tensor> & tensors() const { return tensors_; }
    GraphSnapshot(const GraphSnapshot &) = delete;
    GraphSnapshot & operator=(const GraphSnapshot &) = delete;

private:
    using Index = std::unordered_map<const ggml_tensor *, size_t>;
    void copy_tensors(const ggml_cgraph & graph, Index & index);
    void relink(const Index & index);
    void copy_use_counts(const ggml_cgraph & graph);

    std::vector<ggml_tensor> tensors_;
    std::vector<ggml_tensor *> nodes_;
    std::vector<int32_t> use_counts_;
    std::vector<ggml_tensor *> keys_;
    std::vector<ggml_bitset_t> used_;
    ggml_cgraph graph_{};
};

} // namespace xlm::sim
