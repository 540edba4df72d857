// The experts of one layer in one graph: what experts_graph.cpp finds and the executor runs.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xlm {

struct SubLayer;
struct Weight;

struct ExpertMatmul {
    int node = 0;
    Weight * weight = nullptr;
    size_t index = 0; // of the weight in its sub-layer
};

// Nodes `first` to `last` are the core: from the first to the last MUL_MAT_ID of one unit.
struct ExpertGroup {
    int unit = 0, first = 0, last = 0;
    SubLayer * sublayer = nullptr;
    std::vector<ExpertMatmul> matmuls; // in order of the graph
    const ggml_tensor * ids = nullptr; // [n_used, n_tokens] of I32
    int ids_root = -1;
    std::vector<int> inputs; // activation roots made before the core that it reads
    uint32_t n_used = 0, n_tokens = 0;
    bool by_row = false; // each row of the core's result depends on the same row of all that is before it

    uint32_t n_pairs() const { return n_used * n_tokens; }
};

// Device scratch of a group besides its activations: ids of slots, indices of passes, gathered rows, results.
struct ExpertScratch {
    uint64_t slot_ids = 0, tokens = 0, pairs = 0, local_ids = 0, rows = 0, results = 0; // offsets
    uint64_t bytes = 0;
    uint32_t pairs_per_pass = 0;
};
} // namespace xlm
