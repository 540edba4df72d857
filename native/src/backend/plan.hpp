// From a graph, a tier and what the device holds now to a list of segments: what
// runs where, what is copied first, and which pointers are swapped meanwhile.
#pragma once

#include "analyse.hpp"
#include "cache.hpp"
#include "input_pack.hpp"
#include "pace.hpp"

#include <deque>
#include <vector>

namespace xlm {

// While a segment is submitted, `tensor` points into device memory: base->data + offset.
struct DataPatch {
    ggml_tensor * tensor;
    ggml_tensor * base;
    size_t offset;
    bool view_of_base; // its view_src becomes `base`
};

// Tensors that other graphs may be reading (weights, states) are never written
// to: the node's source is replaced by a shadow instead.
struct SourcePatch {
    ggml_tensor ** slot;
    ggml_tensor * shadow;
};

struct Segment {
    bool on_device = false;
    bool tiled = false;            // one attention whose mask comes in tiles
    bool casts_masks = false;      // on the CPU, and nothing else
    bool embeds = false;           // makes patches of a picture that is sent along
    int run = -1;                  // of a vision graph: into GraphInfo::runs
    int64_t tile_units = 0;        // of the run, computed at a time; 0: all of it
    uint64_t tile_offset = 0;      // in the scratch: what tiles need besides
    int first = 0, last = 0;       // nodes, inclusive
    uint32_t n_units = 1;          // sub-layers it spans, for the bound of work in flight
    uint64_t cost = 0;             // bytes it reads (vision: and what it computes); predicts its time
    std::vector<int> needs;        // activation roots that must be on the device before it
    std::vector<int> writes;       // activation roots it writes
    std::vector<int> state_writes; // into GraphInfo::state_writes
    std::vector<SubLayer *> residents;
    std::vector<State *> states;
    std::vector<Streamed> pieces;
    bool sends_home = false; // behind it: results that live on, and rows of caches however few
    bool by_rows = false;    // one matrix multiplication, computed in as many parts as there are pieces
    bool in_place = false;   // those pieces are rows of a resident copy: nothing of them goes through the ring
    int experts = -1;        // its first nodes are the core of this group (GraphInfo::experts), handled by expert
    std::vector<DataPatch> data;
    std::vector<SourcePatch> sources;
};

// Where a group of experts finds its scratch.
struct ExpertPlace {
    bool by_expert = false;
    uint64_t offset = 0; // in the scratch
    ggml_tensor slot_ids{};
};

// Of a plan that may be taken again (plan_again.cpp).
struct PlanAgain {
    bool whole = false;
    std::vector<SubLayer *> residents;
    std::vector<State *> states;
    uint64_t scratch_bytes = 0, bound_bytes = 0, need_bytes = 0; // the last two of a vision graph
    uint64_t n_schedules = 0;
    Cache::LastImage image;
    char * base = nullptr; // of the scratch
};

struct Plan {
    uint32_t tier = 0;
    uint64_t epoch = 0;
    int from = 0;             // first node
    int64_t tile_patches = 0; // of a vision graph
    uint64_t max_segment_cost = UINT64_MAX;
    uint64_t reserve_bytes = 0; // what copies left free then
    bool partial = false;       // goes on with a node that has a part of its result: not for another step
    bool uses_device = false;
    uint32_t n_fallback = 0;      // units the schedule wanted on the device
    uint32_t n_experts_whole = 0; // units of experts that are not handled by expert
    std::vector<Segment> segments;
    std::vector<Streamed> stream_order;
    uint64_t ring_cache_bytes = 0;        // of the ring, for caches alone
    std::vector<ggml_tensor> shadows;     // device places of activation roots, by root
    InputPack pack;                       // of those, what goes up as one
    std::deque<ggml_tensor> view_shadows; // of views of weights
    std::deque<ExpertPlace> experts;      // by GraphInfo::experts; their addresses stay
    PlanAgain again;
    std::vector<Lull> lulls, cpu_lulls; // by segment: until the link has to be free for experts again, or for results
};

struct PlanLimits {
    uint32_t max_units_in_flight = 1;
    uint32_t max_units_of_unknown_pace = 1; // in flight
    uint64_t max_segment_cost = UINT64_MAX; // of more than one sub-layer
    uint64_t ring_bytes = 0, reserve_bytes = 0, window_bytes = 0;
    bool lends = false;                        // tiers may have taken memory that this one needs
    uint64_t scratch_share_bytes = UINT64_MAX; // of the reserve, while the rest of it is lent
    uint64_t vision_bound_bytes = 0;           // see Core
    int rows_node = -1;                        // a node that was stopped between its parts ...
    int64_t rows_done = 0;                     // ... and the rows that its result has already
};

// Takes device memory as it goes; what cannot be had runs on the CPU.
// The caller holds the gate; host memory is canonical.
Plan make_plan(GraphInfo & info, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits, Inner & inner,
               Cache & cache);

// Places what a plan of this graph needs, as it was when that was made. False: it may be another one by now.
bool take_again(Plan & plan, bool vision, const PlanLimits & limits, Cache & cache);

} // namespace xlm
