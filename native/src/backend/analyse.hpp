// Reads a graph once: which memory its nodes touch, and which sub-layer each
// node belongs to. Touches no device and no tensor data.
//
// A *root* is a tensor that owns memory; views share their root. All tracking
// of validity is by root.
#pragma once

#include "experts_group.hpp"
#include "patch_runs.hpp"
#include "registry.hpp"
#include "scratch_plan.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace xlm {

enum class RootClass : uint8_t {
    activation,
    weight,
    state,
    foreign, // constant of somebody else: what uses it runs on the CPU
};

// Answers about tensors that a graph alone cannot give.
class Resolver {
public:
    virtual ~Resolver() = default;
    virtual RootClass classify(const ggml_tensor * root, Weight *& weight, State *& state) = 0;
    virtual bool device_supports(const ggml_tensor * node) = 0;
    virtual uint64_t device_bytes(const ggml_tensor * root) = 0;
};

struct Root {
    ggml_tensor * tensor = nullptr;
    RootClass cls = RootClass::activation;
    Weight * weight = nullptr;
    State * state = nullptr;
    int producer = -1;    // node that makes all of it; -1: there before the graph
    int last_use = -1;    // last node that touches it
    int keep_until = -1;  // its place on the device is not reused before that node has run
    bool escapes = false; // somebody reads it after the graph
    bool written = false; // by a node of this graph
    bool hosted = false;  // a mask or a picture that never lies on the device as a whole
    uint64_t device_bytes = 0;
    bool by_rows = true; // of a weight: every use is a plain matrix multiplication, which may go row by row
    RangeSet reads;      // of a state: the bytes that nodes of this graph read
};

struct Node {
    int owner = -1;       // index into GraphInfo::units, filled last
    int root = -1;        // root it writes, -1 for views
    bool view = false;    // moves no data
    bool partial = false; // writes into a root that was there before
    bool cpu_only = false;
    bool tiled = false;                       // attention with a hosted mask
    bool casts_mask = false;                  // makes a hosted mask of one on the host, and nothing else
    int run = -1;                             // into GraphInfo::runs
    bool alone = false;                       // of a vision graph: moves much and is fused with nothing
    uint32_t first_source = 0, n_sources = 0; // into GraphInfo::sources
};

// A maximal run of nodes of one sub-layer. nullptr: no weights anywhere near.
struct Unit {
    int first = 0, last = 0; // nodes, inclusive
    SubLayer * sublayer = nullptr;
};

// A node that writes into a state; rows are read from `ids` before the graph runs.
struct StateWrite {
    int node = 0;
    int root = 0;
    const ggml_tensor * ids = nullptr; // nullptr: all bytes of the node's view
};

struct GraphInfo {
    uint64_t uid = 0;
    ggml_tensor ** nodes_pointer = nullptr;
    uint64_t generation = 0;
    std::vector<Root> roots;
    std::vector<Node> nodes;
    std::vector<int> sources; // roots read by nodes
    std::vector<Unit> units;
    std::vector<int> inputs; // activation roots that were there before the graph
    std::vector<StateWrite> state_writes;
    std::vector<ExpertGroup> experts;
    std::vector<PatchRun> runs;
    uint32_t n_tokens = 0;           // columns of the first matrix multiplication
    uint64_t scratch_need_bytes = 0; // device scratch if every unit ran on the device
    bool replayable = true;          // running it twice gives the same state
    bool vision = false;             // of a model with a projector
    int fusion_reach = 0;            // see kFusionReach
    int stage = -1;                  // root of the place that hosted masks come through
    std::unique_ptr<ggml_tensor> stage_tensor;
    uint32_t n_attention_cpu = 0; // attention operations the device cannot run
};

// Takes casts of masks that change nothing out of a graph; analyse_graph() begins with it.
void drop_mask_copies(const ggml_cgraph & graph);

GraphInfo analyse_graph(const ggml_cgraph & graph, Resolver & resolver);

// Inner backends fuse runs of nodes: the fused kernel reads the first node's sources while it
// writes the last node's result, so the two must not share bytes although their lifetimes do not
// meet. The longest pattern known (top-k of experts) spans ten nodes; without a sort the longest are of five: norm,
// scale, rope, view and a cache's rows, or two products with their biases and a gate.
constexpr int kFusionReach = 12, kPlainFusionReach = 5;

// Lifetimes on the device when `on_device[i]` says that node i runs there.
std::vector<ScratchItem> scratch_items(const GraphInfo & info, const std::vector<uint8_t> & on_device);

// Consecutive nodes from `from` on that a vision graph submits together at most, where `on_device` says so.
std::vector<PatchSpan> vision_spans(const GraphInfo & info, const std::vector<uint8_t> & on_device, int from);

// Whether two nodes of one sub-layer of a vision graph are submitted apart.
bool cut_between(const GraphInfo & info, const Node & before, const Node & after);

bool is_view_op(ggml_op op);

// Masks of attention that are larger stay on the host and reach the device in tiles of about as many bytes.
constexpr uint64_t kMaskStageBytes = 1 << 20;

} // namespace xlm
