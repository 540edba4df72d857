#include "submitted.hpp"

#include <algorithm>
#include <cstring>

namespace xlm {

namespace {

constexpr size_t kChunkBytes = 256 << 10, kAlignment = 64;

} // namespace

char * Submitted::take_bytes(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].size) {
        chunk_++;
        used_ = 0;
    }
    if (chunk_ == chunks_.size()) {
        const size_t size = std::max(bytes, kChunkBytes);
        chunks_.push_back({std::make_unique<char[]>(size), size});
    }
    char * taken = chunks_[chunk_].memory.get() + used_;
    used_ += bytes;
    bytes_ += bytes;
    return taken;
}

template <typename T>
T * Submitted::take(size_t count) {
    char * taken = take_bytes(count * sizeof(T));
    std::memset(taken, 0, count * sizeof(T));
    return reinterpret_cast<T *>(taken);
}

void Submitted::release() {
    chunk_ = used_ = 0;
    bytes_ = 0;
}

// Room for the nodes, what they read, and what each of these views.
void Submitted::size_table(const ggml_cgraph & graph) {
    size_t count = 1;
    for (int i = 0; i < graph.n_nodes; i++) {
        const auto & sources = graph.nodes[i]->src;
        count += 1 + static_cast<size_t>(GGML_MAX_SRC - std::count(std::begin(sources), std::end(sources), nullptr));
    }
    const size_t size = ggml_hash_size(2 * 2 * count);
    bits_.assign(ggml_bitset_size(size), 0);
    keys_.resize(size);
    copies_.resize(size);
    originals_ = {size, bits_.data(), keys_.data()};
    made_.clear();
}

ggml_tensor * Submitted::copy_of(ggml_tensor * tensor) {
    const size_t at = ggml_hash_insert(&originals_, tensor);
    if (at == GGML_HASHSET_ALREADY_EXISTS) return copies_[ggml_hash_find(&originals_, tensor)];
    copies_[at] = reinterpret_cast<ggml_tensor *>(take_bytes(sizeof(ggml_tensor)));
    std::memcpy(static_cast<void *>(copies_[at]), tensor, sizeof(ggml_tensor));
    made_.push_back(copies_[at]);
    return copies_[at];
}

ggml_cgraph * Submitted::keep(const ggml_cgraph & graph) {
    size_table(graph);
    ggml_cgraph & copy = *take<ggml_cgraph>(1);
    copy.n_nodes = copy.size = graph.n_nodes;
    copy.order = graph.order;
    copy.nodes = take<ggml_tensor *>(static_cast<size_t>(graph.n_nodes));
    for (int i = 0; i < graph.n_nodes; i++)
        copy.nodes[i] = copy_of(graph.nodes[i]);
    for (int i = 0; i < graph.n_nodes; i++)
        for (ggml_tensor *& source : copy.nodes[i]->src)
            if (source) source = copy_of(source);
    for (size_t i = 0; i < made_.size(); i++) // grows by what is viewed
        if (made_[i]->view_src) made_[i]->view_src = copy_of(made_[i]->view_src);
    count_uses(graph, copy);
    return &copy;
}

// As in the whole graph, so that the device fuses what it would fuse there.
void Submitted::count_uses(const ggml_cgraph & graph, ggml_cgraph & copy) {
    const size_t size = ggml_hash_size(2 * static_cast<size_t>(graph.n_nodes) + 1);
    copy.visited_hash_set = {size, take<ggml_bitset_t>(ggml_bitset_size(size)), take<ggml_tensor *>(size)};
    copy.use_counts = take<int32_t>(size);
    for (int i = 0; i < graph.n_nodes; i++)
        copy.use_counts[ggml_hash_find_or_insert(&copy.visited_hash_set, copy.nodes[i])] =
            ggml_node_get_use_count(&graph, i);
}

} // namespace xlm
