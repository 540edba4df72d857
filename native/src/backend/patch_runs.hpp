// Runs of operations of a vision tower that treat every patch by itself, and how they are computed some patches at a
// time. What such a run makes and uses up itself then takes the memory of a tile, not of the image. Pure.
#pragma once

#include "scratch_plan.hpp"

#include "ggml.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace xlm {

struct GraphInfo;
class Resolver;

// Fewer patches are computed at once; fewer units than that make no tile of their own, for kernels take other paths
// for a few columns.
constexpr int64_t kPatchesToTile = 256, kLeastUnits = 128, kLeastTile = 32, kTileStep = 16;
// Patches a tile has at most: the first that fits the budget. Large tiles read the weights less often.
constexpr std::array<int64_t, 4> kTilePatches = {512, 256, 128, 64};
// All of an image but its embedding, which is sent in pieces while others are computed: where that takes no more memory
// than the language model had. Then it saves launches, and reading the weights again.
constexpr int64_t kAllPatches = int64_t{1} << 40;

// Where a tensor is cut: a unit has `rows` of dimension `dim`. dim -1: it is used whole.
struct PatchCut {
    int dim = -1;
    int64_t rows = 0;
};

struct NodeCut {
    PatchCut out;
    std::array<PatchCut, GGML_MAX_SRC> sources;
    bool packed_positions = false; // of ROPE: four rows of positions, cut and put together anew
};

// IM2COL, the product with the kernel, and a copy of that which only gives it another shape (-1: none). The product has
// no place as a whole where the copy does.
struct PatchEmbedding {
    int columns = 0, product = 0, copy = -1; // nodes

    bool has(int node) const { return node == columns || node == product || node == copy; }
    int last() const { return std::max(product, copy); }
};

struct PatchRun {
    int first = 0, last = 0; // nodes, inclusive
    int64_t n_units = 0;
    int64_t patches_per_unit = 1;
    bool embeds = false;                                  // all of it is `embeddings`
    std::vector<PatchEmbedding> embeddings;               // of one picture
    uint64_t image_unit_bytes = 0, result_unit_bytes = 0; // of an embedding
    uint64_t positions_unit_bytes = 0;                    // where positions are packed
    std::vector<NodeCut> cuts;                            // by node, from `first` on

    const NodeCut & cut(int node) const { return cuts[static_cast<size_t>(node - first)]; }
    // The embedding that a node is of; nullptr: of none.
    const PatchEmbedding * embedding_at(int node) const;
};

// Nodes that are submitted together.
struct PatchSpan {
    int first = 0, last = 0;
    int run = -1; // of all its nodes; -1: they are no run
};

struct PatchTiles {
    int64_t n_tiles = 1, units = 0; // all but the last have so many

    // At most `patches` at a time, in tiles of about the same size.
    PatchTiles(const PatchRun & run, int64_t patches);
};

// Fills GraphInfo::runs and Node::run.
void find_patch_runs(const ggml_cgraph & graph, GraphInfo & info, Resolver & resolver);

// Made and used up inside the span, and cut like all of it: takes the memory of a tile.
bool lives_in_tile(const GraphInfo & info, int root, const PatchSpan & span);

// Lifetimes and sizes by what is submitted together; appends one item a span, for what only tiles need.
void fit_to_spans(const GraphInfo & info, const std::vector<PatchSpan> & spans, int64_t tile_patches,
                  std::vector<ScratchItem> & items);

// Of the item appended for a span: two places of the picture's rows, of which one is filled while the other is read,
// one of the kernel's result, and one of positions.
struct TilePlaces {
    uint64_t images[2] = {0, 0}, result = 0, positions = 0, bytes = 0;
    TilePlaces(const PatchRun & run, int64_t units);
};

} // namespace xlm
