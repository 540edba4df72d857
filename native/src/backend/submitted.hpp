// Graphs as they were when they were submitted. ggml's contract lets a backend look at the tensors of a graph until it
// is synchronized: ggml-vulkan finds by those of the graphs before where a barrier is needed. Ours point to device
// memory only while they are submitted, and those of a tile are gone soon after, so the device gets copies that stay.
#pragma once

#include "ggml-impl.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace xlm {

class Submitted {
public:
    // A copy of the graph, of its nodes and of all that they read and view; lives until release(). Graphs of the same
    // sizes after a release get the same addresses, by which some devices know a graph again. Throws std::bad_alloc.
    ggml_cgraph * keep(const ggml_cgraph & graph);
    void release(); // the memory is kept for the next ones

    uint64_t bytes() const { return bytes_; } // since the last release

private:
    struct Chunk {
        std::unique_ptr<char[]> memory;
        size_t size = 0;
    };

    template <typename T>
    T * take(size_t count); // zeroed
    char * take_bytes(size_t bytes);
    void size_table(const ggml_cgraph & graph);
    ggml_tensor * copy_of(ggml_tensor * tensor);
    void count_uses(const ggml_cgraph & graph, ggml_cgraph & copy);

    std::vector<Chunk> chunks_;
    size_t chunk_ = 0, used_ = 0; // where the next bytes are taken
    uint64_t bytes_ = 0;
    // Of the graph being copied: originals, their copies by the same slot, and copies in the order they were made.
    ggml_hash_set originals_{};
    std::vector<ggml_bitset_t> bits_;
    std::vector<ggml_tensor *> keys_, copies_, made_;
};

} // namespace xlm
