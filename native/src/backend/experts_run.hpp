// Runs the core of an experts sub-layer one expert at a time: reads what the router chose, brings those experts
// to the device (or leaves some to the CPU), and computes with them.
#pragma once

#include "core.hpp"
#include "plan.hpp"

#include <deque>

namespace xlm {

class Executor;
struct PassPlaces;

class ExpertRunner {
public:
    enum class Result { done, lost, interrupted, failed };

    ExpertRunner(Core & core, Executor & executor) : core_(core), executor_(executor) {}

    void begin_graph(); // bounds what may be uploaded beside it
    // Submits the segment whose core is this group. Interrupted: somebody wants the device; nothing that the
    // segment writes counts, and what the core reads is still there.
    Result run(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment);

private:
    // Work on experts that share memory: those in slots, or those of one part of the window.
    struct Batch {
        bool in_slots = false;
        std::vector<uint32_t> experts;
        std::vector<std::pair<uint32_t, uint32_t>> launches; // first pair and number of pairs, in the index lists
    };

    struct Step;    // experts_run.cpp
    struct CpuPart; // the same

    bool fetch_ids(Step & step);
    bool read_ids(Step & step);
    bool fetch_inputs(Step & step);
    void decide(Step & step);
    void note(Step & step);
    bool load(Step & step);
    bool queue_behind(Step & step);

    Result submit(Step & step);
    Result submit_core(Step & step);
    bool upload_slot_ids(Step & step);

    Result submit_passes(Step & step);
    void make_batches(Step & step);
    void list_pairs(Step & step, Batch & batch, const std::vector<std::vector<int32_t>> & pairs_of);
    static void open_launch(Step & step, Batch & batch);
    bool upload_indices(Step & step);
    char * scratch_at(const Step & step, uint64_t offset) const;
    bool interrupted();
    Result run_batch(Step & step, const ExpertMatmul & matmul, const Batch & batch);
    bool launch(Step & step, const ExpertMatmul & matmul, ggml_tensor & matrix, std::pair<uint32_t, uint32_t> pairs);

    Result take_cpu_part(Step & step);
    void make_cpu_part(Step & step);
    void make_cpu_passes(Step & step, CpuPart & part);
    void make_cpu_graph(Step & step, CpuPart & part, PassPlaces & places);
    Result run_cpu_part(Step & step, const CpuPart & part);
    bool upload_cpu_rows(Step & step);

    Core & core_;
    Executor & executor_;
    std::deque<std::vector<int32_t>> in_flight_; // host sides of uploads under way; empty once the device is idle
    uint64_t graph_begin_ns_ = 0, last_graph_ns_ = 0, behind_ns_ = 0;
    int n_interrupts_ = 0; // in this graph
    std::vector<int32_t> cpu_pairs_;
    std::vector<char> context_memory_, cpu_context_memory_, cpu_memory_;
};

} // namespace xlm
