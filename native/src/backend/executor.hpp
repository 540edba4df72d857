// Runs the graphs of one context.
#pragma once

#include "attention_tiles.hpp"
#include "core.hpp"
#include "experts_run.hpp"
#include "graph_print.hpp"
#include "host_masks.hpp"
#include "plan.hpp"

#include <deque>
#include <list>

namespace xlm {

// Nodes first to last as a graph of their own, for an inner backend.
ggml_cgraph view_of(const ggml_cgraph & graph, int first, int last);

class Executor {
public:
    explicit Executor(Core & core);
    ~Executor();
    Executor(const Executor &) = delete;
    Executor & operator=(const Executor &) = delete;

    ggml_status run(ggml_cgraph * graph);
    void set_threads(int n_threads);

private:
    friend class ExpertRunner;

    enum class Outcome { done, replan, interrupted, lost, aborted, failed };

    // Tensors of a segment point into device memory as long as this lives.
    class Patched {
    public:
        Patched(Executor & executor, const Segment & segment) : executor_(executor), segment_(segment) {
            executor_.patch(segment_);
        }
        ~Patched() { executor_.unpatch(segment_); }
        Patched(const Patched &) = delete;
        Patched & operator=(const Patched &) = delete;

    private:
        Executor & executor_;
        const Segment & segment_;
    };

    // A graph seen before, with the plan it last ran by.
    struct Known {
        GraphPrint print;
        GraphInfo info;
        std::vector<Plan> plans; // by tier, made lazily
    };

    struct Saved {
        ggml_tensor * tensor;
        void * data;
        ggml_backend_buffer_t buffer;
        ggml_tensor * view_src;
    };

    ggml_status run_locked(ggml_cgraph & graph);
    ggml_status run_by_plans(ggml_cgraph & graph, Known & known, uint32_t tier, const PlanLimits & limits);
    void abandon(const GraphInfo & info);
    Known & known(const ggml_cgraph & graph);
    std::list<Known>::iterator find_known(const ggml_cgraph & graph);
    uint32_t pick_tier(const GraphInfo & info, uint32_t & n_tokens) const;
    Plan & plan_for(Known & known, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits);
    PlanLimits limits_for(const GraphInfo & info, uint32_t n_tokens);
    void note_needs(const GraphInfo & info, uint32_t n_tokens);

    ggml_status run_on_cpu(ggml_cgraph & graph, int first, int last);
    ggml_status run_all_on_cpu(ggml_cgraph & graph, const GraphInfo & info);
    ggml_status replay(ggml_cgraph & graph, const GraphInfo & info);
    void save_inputs(const GraphInfo & info);
    void read_state_rows(const ggml_cgraph & graph, const GraphInfo & info);

    bool rest_at_border();
    static bool experts_near(const Plan & plan, size_t s, size_t within); // so many segments further
    bool wanted_back(const Segment & segment); // a reclaim was asked for, to which it has not given way yet
    bool serve_at_border(const GraphInfo & info, Plan & plan, const Segment & segment);
    bool give_way(const GraphInfo & info, Plan & plan, const Segment & segment); // to the reclaims asked for
    Outcome run_plan(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const PlanLimits & limits);
    Outcome run_device_segment(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment,
                               const PlanLimits & limits);
    Outcome run_ordinary(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment,
                         const PlanLimits & limits);
    Outcome run_cpu_segment(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment);
    static Lull & lull_of(Plan & plan, const Segment & segment) {
        return plan.lulls[static_cast<size_t>(&segment - plan.segments.data())];
    }
    bool begin_ring(Plan & plan);
    bool begin_lull(Lull & lull, bool hidden);
    void end_lull();
    Outcome prepare(const GraphInfo & info, Plan & plan, const Segment & segment);
    Outcome upload_copies(const Segment & segment);
    WorkAhead::Fed upload_state(State & state, Gate * gate);
    bool upload_activations(const GraphInfo & info, Plan & plan, const Segment & segment);
    bool upload_pack(const GraphInfo & info, const Plan & plan);
    bool download_rows(State & state, const RangeSet & rows, Stream stream);
    Outcome run_by_rows(ggml_cgraph & graph, const GraphInfo & info, const Segment & segment,
                        const PlanLimits & limits);
    Outcome before_rows(const Segment & segment, const Streamed & part, const PlanLimits & limits);
    bool compute_rows(ggml_cgraph & graph, const Segment & segment, int node, const Streamed & part);
    bool fetch_rows(const ggml_tensor & rows, const ggml_tensor & whole, int64_t first_row);
    bool write_back(const GraphInfo & info, Plan & plan, const Segment & segment, bool ids_near);
    bool send_results(const GraphInfo & info, Plan & plan, const Segment & segment);
    bool send_rows_home(const GraphInfo & info);
    bool flush_writes(const GraphInfo & info, Stream stream);
    static State & state_of(const GraphInfo & info, int write);
    Pace & pace_of(const Segment & segment);
    bool make_room(const Pace & pace, uint64_t cost, uint32_t n_units, const PlanLimits & limits);
    Outcome run_experts(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment);
    bool compute_range(ggml_cgraph & graph, int first, int last); // of a patched segment
    bool note_submitted(const Segment & segment);
    ggml_status compute_on_cpu(ggml_cgraph & graph, int n_threads); // 0: as many as usual
    Outcome submit(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment,
                   const PlanLimits & limits);
    Outcome submit_parts(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment,
                         const PlanLimits & limits);
    Outcome compute_tiles(ggml_cgraph & graph, const GraphInfo & info, const Plan & plan, const Segment & segment,
                          const PlanLimits & limits);
    bool compute_tile(ggml_cgraph & graph, int at, ggml_tensor stage, const AttentionTile & tile,
                      const uint16_t * values);
    bool compute_patches(ggml_cgraph & graph, const GraphInfo & info, const Segment & segment);
    Outcome embed_patches(ggml_cgraph & graph, const GraphInfo & info, const Plan & plan, const Segment & segment,
                          const PlanLimits & limits);
    Outcome before_part(Pace & pace, uint64_t cost, bool first, const PlanLimits & limits);
    bool part_submitted(Pace & pace, uint64_t cost);
    bool restore_partial(Plan & plan, const Segment & segment);
    bool keep_partial(const GraphInfo & info, Plan & plan, const Segment & segment);
    const ggml_tensor * packed_positions(const ggml_cgraph & graph, const GraphInfo & info, const Segment & segment);
    bool send_positions(const ggml_tensor & positions, ggml_tensor & part, int64_t first, int64_t count,
                        int64_t n_units);
    static bool notes_masks(const Plan & plan, const Segment & segment);
    Outcome note_masks(const ggml_cgraph & graph, const GraphInfo & info, const Segment & segment);
    bool note_mask(const ggml_tensor & cast, const GraphInfo & info, bool stops);
    void note_inputs(const ggml_cgraph & graph, const GraphInfo & info, const Plan & plan, size_t from);
    void write_noted_masks(const GraphInfo & info, const Segment & segment);
    void patch(const Segment & segment);
    void unpatch(const Segment & segment);

    // Makes host memory canonical for everything that is read at node `from` or later.
    bool canonicalise(const GraphInfo & info, Plan & plan, int from);
    bool fetch_root(const GraphInfo & info, Plan & plan, int r, Stream stream = Stream::compute); // queued

    Core & core_;
    ggml_backend_t cpu_;
    int n_threads_;
    uint64_t generation_ = 0;
    std::list<Known> known_; // most recent first

    // Of the running graph:
    std::vector<uint8_t> on_host_, on_device_;    // validity by root
    std::vector<RangeSet> state_ranges_;          // by GraphInfo::state_writes
    std::vector<std::vector<char>> saved_inputs_; // by GraphInfo::inputs
    bool host_state_changed_ = false;             // a state's host bytes were written
    std::vector<Saved> saved_;
    std::vector<ggml_tensor *> saved_sources_;
    std::vector<int> unflushed_writes_; // into GraphInfo::state_writes; their rows are in State::unflushed too
    WorkAhead ahead_;                   // on the compute stream
    Pace *pace_ = nullptr, *stream_pace_ = nullptr;
    ExpertRunner experts_{core_, *this};
    HostMasks masks_;
    Lull * lull_ = nullptr; // of the running plan: the one that lasts
    uint64_t lull_begin_ns_ = 0;
    std::vector<char> packed_;                   // Plan::pack, on its way: until the next one all is waited for
    std::deque<std::vector<char>> on_their_way_; // to the device: must stay until it was waited for
    // What of a segment in parts was computed when it gave way. Not in the results' places on the host: before they are
    // whole, those may be other tensors'.
    struct Partial {
        int first = -1, last = -1;                                // nodes of the segment
        int64_t done = 0;                                         // units of patches, or queries
        std::vector<std::pair<size_t, std::vector<char>>> kept{}; // roots
    } partial_;
    ggml_tensor host_positions_{};
    struct VisionPaces {
        Pace plain, embedding, tiled_attention; // the last two send the picture and masks along
    } vision_paces_;
    int gave_way_at_ = -1; // a segment gives way to reclaims once: a storm of them must not hold a step up for ever
    int rows_node_ = -1;   // see PlanLimits
    int64_t rows_done_ = 0;
    uint64_t epoch_ = 0;
};

// Tokens of the step this thread announced; 0: not announced.
void announce_step(uint32_t n_tokens);
uint32_t announced_tokens();

} // namespace xlm
