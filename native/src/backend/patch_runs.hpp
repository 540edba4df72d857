// Runs of operations of a vision tower that treat every patch by itself, and how they are computed some patches at a
// time. What such a run makes and uses up itself then takes the memory of a tile, not of the image. Pure.
#pragma once

#include "scratch_plan.hpp"

#include "ggml.h"

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

struct PatchRun {
    int first = 0, last = 0; // nodes, inclusive
    int64_t n_units = 0;
    int64_t patches_per_unit = 1;
    bool embeds = false;                                  // IM2COL and the product with the kernel
    uint64_t image_unit_bytes = 0, result_unit_bytes = 0; // of an embedding
    uint64_t positions_unit_bytes = 0;                    // where positions are packed
    std::vector<NodeCut> cuts;                            // by node, from `first` on

    const NodeCut & cut(int node) const { return cuts[static_cast<size_t>(node - first)]; }
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

// Of the item appended for a span: places of the picture's rows, of the kernel's result, and of positions.
struct TilePlaces {
    uint64_t image = 0, result = 0, positions = 0, bytes = 0;
    TilePlaces(const PatchRun & run, int64_t units);
};

} // namespace xlm
