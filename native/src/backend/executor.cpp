#include "executor.hpp"

#include "buffer.hpp"
#include "errors.hpp"

#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace xlm {

namespace {

// Of a vision graph in flight, within kQueueNs: parts of a sub-layer may be short, and waiting for each wakes the host
// as often.
constexpr uint32_t kVisionSegments = 8;
constexpr size_t kKnownGraphs = 8; // prefill, decode and their variants of one context

thread_local uint32_t step_tokens = 0;

// Tensors of our buffers are told apart by the usage of the buffer.
class CoreResolver : public Resolver {
public:
    explicit CoreResolver(Core & core) : core_(core) {}

    RootClass classify(const ggml_tensor * root, Weight *& weight, State *& state) override {
        const ggml_backend_buffer_t buffer = root->buffer;
        if (!buffer) return RootClass::foreign;
        if (buffer->usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE) return RootClass::activation;
        if (!host_buffer_of(buffer)) return RootClass::foreign;
        if ((weight = core_.registry.find_weight(root))) return RootClass::weight;
        if ((state = core_.registry.find_state(root))) return RootClass::state;
        return RootClass::foreign;
    }

    bool device_supports(const ggml_tensor * node) override { return core_.inner.supports_op(node); }
    uint64_t device_bytes(const ggml_tensor * root) override { return core_.inner.alloc_bytes(root); }

private:
    Core & core_;
};

// Whether segments cut for another pace are still of about the right length.
bool still_fits(const Plan & plan, const PlanLimits & limits) {
    const double was = static_cast<double>(plan.max_segment_cost), is = static_cast<double>(limits.max_segment_cost);
    return is < was * 1.5 && was < is * 1.5;
}

// Called by the CPU backend after each node, on the thread that runs the graph: the border where a CPU segment rests.
bool should_abort(void * data) {
    Core & core = *static_cast<Core *>(data);
    if (core.rests.slow()) core.rest();
    return core.abort_step.load(std::memory_order_relaxed);
}

} // namespace

ggml_cgraph view_of(const ggml_cgraph & graph, int first, int last) {
    ggml_cgraph view = graph; // use counts and hash set stay: fusion needs them
    view.nodes = graph.nodes + first;
    view.n_nodes = last - first + 1;
    view.n_leafs = 0;
    view.leafs = nullptr;
    view.grads = view.grad_accs = nullptr;
    view.uid = 0;
    return view;
}

void announce_step(uint32_t n_tokens) {
    step_tokens = n_tokens;
}
uint32_t announced_tokens() {
    return step_tokens;
}

Executor::Executor(Core & core)
    : core_(core), cpu_(ggml_backend_cpu_init()), n_threads_(1),
      ahead_(core.inner, core.stats, Stream::compute, core.upload_pace) {
    if (!cpu_) throw std::bad_alloc();
    ggml_backend_cpu_set_abort_callback(cpu_, should_abort, &core_);
    const uint32_t wanted = core_.n_threads.load();
    n_threads_ = static_cast<int>(wanted ? wanted : std::max(1U, std::thread::hardware_concurrency()));
    ggml_backend_cpu_set_n_threads(cpu_, n_threads_);
}

Executor::~Executor() {
    ggml_backend_free(cpu_);
}

void Executor::set_threads(int n_threads) {
    if (core_.n_threads.load() == 0) ggml_backend_cpu_set_n_threads(cpu_, n_threads_ = n_threads);
}

// One thread computes without any barrier: waking others takes longer than little work does.
ggml_status Executor::compute_on_cpu(ggml_cgraph & graph, int n_threads) {
    const bool fewer = n_threads > 0 && n_threads < n_threads_;
    if (fewer) ggml_backend_cpu_set_n_threads(cpu_, n_threads);
    const ggml_status status = cpu_->iface.graph_compute(cpu_, &graph);
    if (fewer) ggml_backend_cpu_set_n_threads(cpu_, n_threads_);
    return status;
}

ggml_status Executor::run(ggml_cgraph * graph) {
    const std::lock_guard<std::mutex> running(core_.exec_mutex);
    try {
        return run_locked(*graph);
    } catch (const std::bad_alloc &) {
        set_last_error("out of host memory while running a graph");
        return GGML_STATUS_ALLOC_FAILED;
    } catch (const std::exception & error) {
        set_last_error(error.what());
        return GGML_STATUS_FAILED;
    }
}

ggml_status Executor::run_locked(ggml_cgraph & graph) {
    const Timed timed(core_.stats.ns_graph);
    core_.stats.n_graphs++;
    core_.rests.begin(now_ns());
    core_.take_schedule();
    Known & entry = known(graph);
    GraphInfo & info = entry.info;
    uint32_t n_tokens = 0;
    uint32_t tier = pick_tier(info, n_tokens);
    if (info.vision) tier = core_.schedule.vision_tier_for(n_tokens = info.n_tokens);
    TraceScope step(core_.trace, XLM_TRACE_STEP, {});
    step.event.n_tokens = n_tokens;
    note_needs(info, n_tokens);
    read_state_rows(graph, info);
    if (!info.vision) core_.note_step(tier);
    PlanLimits limits = limits_for(info, n_tokens);
    experts_.begin_graph();
    masks_.begin_graph();
    partial_ = {};
    on_host_.assign(info.roots.size(), 1);
    on_device_.assign(info.roots.size(), 0);
    host_state_changed_ = false;
    gave_way_at_ = rows_node_ = -1;
    unflushed_writes_.clear();

    core_.gate.acquire();
    struct Release {
        Gate & gate;
        ~Release() { gate.release(); }
    } release{core_.gate};
    if (core_.registry.take_weights_changed()) core_.cache.drop_weights();
    core_.cache.ring.begin_graph();
    if (info.vision && !core_.inner.computes_images()) return run_all_on_cpu(graph, info);
    info.vision ? core_.enter_vision() : core_.leave_vision();
    limits.vision_bound_bytes = core_.vision_bound_bytes;
    try {
        return run_by_plans(graph, entry, tier, limits);
    } catch (...) { // host memory ran out half-way: rows the host lacks are given up, as the step is
        abandon(info);
        throw;
    }
}

// A graph of many tokens whose pace is not known yet is fed one sub-layer at a time.
PlanLimits Executor::limits_for(const GraphInfo & info, uint32_t n_tokens) {
    const bool decode = n_tokens <= 1;
    PlanLimits limits;
    pace_ = info.vision ? &vision_paces_.plain : &core_.step_paces.of(n_tokens);
    stream_pace_ = info.vision ? &vision_paces_.plain : &core_.stream_paces.of(n_tokens);
    limits.max_segment_cost = pace_->cost_within(kQueueNs / 2);
    limits.max_units_in_flight = decode ? core_.max_in_flight_decode.load() : core_.max_in_flight_prefill.load();
    limits.max_units_of_unknown_pace = decode ? limits.max_units_in_flight : 1;
    if (!pace_->known()) limits.max_units_in_flight = limits.max_units_of_unknown_pace;
    limits.ring_bytes = core_.schedule.ring_bytes;
    limits.reserve_bytes = core_.reserve_bytes();
    limits.window_bytes = core_.schedule.expert_window_bytes;
    limits.lends = core_.schedule.lends() && !info.vision;
    if (limits.lends && limits.reserve_bytes < core_.schedule.reserve_bytes)
        limits.scratch_share_bytes =
            limits.reserve_bytes - std::min(limits.reserve_bytes, core_.schedule.streaming_bytes());
    if (info.vision) { // patches, not weights, decide how long a sub-layer takes
        limits.max_units_in_flight = kVisionSegments;
        limits.max_segment_cost = UINT64_MAX;
        limits.ring_bytes = core_.schedule.vision_ring_bytes;
    }
    return limits;
}

ggml_status Executor::run_by_plans(ggml_cgraph & graph, Known & entry, uint32_t tier, const PlanLimits & limits) {
    GraphInfo & info = entry.info;
    bool inputs_saved = false;
    int from = 0;
    for (;;) {
        Plan & plan = plan_for(entry, graph, tier, from, limits);
        core_.cache.ahead_of_image = false;
        core_.stats.n_fallback_cpu += plan.n_fallback;
        core_.stats.expert_whole += plan.n_experts_whole;
        if (core_.inner.lost() && core_.ledger.view().used_bytes > 0) core_.lose_device();
        // An image takes long: it looks at each sub-layer whether there is a budget again.
        const bool may_return = info.vision && core_.inner.usable();
        if (!plan.uses_device && from == 0 && !may_return) return run_all_on_cpu(graph, info);
        if (!inputs_saved && !info.vision) save_inputs(info); // an image is encoded anew instead
        inputs_saved = true;
        epoch_ = plan.epoch;
        const Outcome outcome = run_plan(graph, info, plan, limits);
        if (outcome != Outcome::done) core_.inner.drain(); // what it still reads must not be freed or written to
        ahead_.forget();
        on_their_way_.clear();
        if (outcome == Outcome::done) return GGML_STATUS_SUCCESS;
        if (outcome == Outcome::lost) return replay(graph, info);
        if (outcome == Outcome::aborted) return GGML_STATUS_ABORTED;
        if (outcome == Outcome::failed) return GGML_STATUS_FAILED;
        from = plan.from; // set to where it stopped; host memory is canonical there
        on_device_.assign(info.roots.size(), 0);
    }
}

// Host memory becomes canonical without copying anything.
void Executor::abandon(const GraphInfo & info) {
    core_.inner.synchronize_all();
    ahead_.forget();
    core_.cache.ring.forget();
    for (const StateWrite & write : info.state_writes) {
        State & state = *info.roots[static_cast<size_t>(write.root)].state;
        for (const ByteRange & range : state.unflushed.ranges())
            state.mark_dirty(range);
        state.unflushed.clear();
    }
}

Executor::Known & Executor::known(const ggml_cgraph & graph) {
    const uint64_t generation = core_.registry.generation();
    if (generation != generation_) known_.clear();
    generation_ = generation;
    if (const auto found = find_known(graph); found != known_.end()) {
        known_.splice(known_.begin(), known_, found);
        return known_.front();
    }
    GraphPrint print(graph); // reading it changes it
    CoreResolver resolver(core_);
    known_.push_front({std::move(print), analyse_graph(graph, resolver), {}});
    if (known_.size() > kKnownGraphs) known_.pop_back();
    generation_ = core_.registry.generation(); // analysing may have found new tensors
    return known_.front();
}

std::list<Executor::Known>::iterator Executor::find_known(const ggml_cgraph & graph) {
    const auto same = std::find_if(known_.begin(), known_.end(), [&](const Known & known) {
        const GraphInfo & info = known.info;
        return graph.uid != 0 && info.uid == graph.uid && info.nodes_pointer == graph.nodes &&
               info.nodes.size() == static_cast<size_t>(graph.n_nodes);
    });
    if (same != known_.end()) return same;
    const auto alike =
        std::find_if(known_.begin(), known_.end(), [&](const Known & known) { return known.print.matches(graph); });
    if (alike == known_.end()) return alike;
    drop_mask_copies(graph);
    alike->info.uid = graph.uid;
    alike->info.nodes_pointer = graph.nodes;
    return alike;
}

uint32_t Executor::pick_tier(const GraphInfo & info, uint32_t & n_tokens) const {
    n_tokens = announced_tokens() ? announced_tokens() : std::max(1U, info.n_tokens);
    return core_.schedule.tier_for(n_tokens);
}

void Executor::note_needs(const GraphInfo & info, uint32_t n_tokens) {
    Stats & stats = core_.stats;
    if (info.vision) {
        stats.n_vision_graphs++;
        stats.n_vision_attention_cpu += info.n_attention_cpu;
        return stats.vision_scratch_need_bytes.raise_to(info.scratch_need_bytes);
    }
    if (n_tokens <= 1) return stats.scratch_need_decode_bytes.raise_to(info.scratch_need_bytes);
    stats.prefill_tokens_seen.raise_to(n_tokens);
    stats.scratch_need_prefill_bytes.raise_to(info.scratch_need_bytes);
}

Plan & Executor::plan_for(Known & known, ggml_cgraph & graph, uint32_t tier, int from, const PlanLimits & limits) {
    for (Plan & plan : known.plans) {
        const bool same = plan.tier == tier && plan.from == 0 && !plan.partial && plan.epoch == core_.cache.epoch() &&
                          plan.reserve_bytes == limits.reserve_bytes;
        if (from == 0 && same && still_fits(plan, limits)) return plan;
    }
    for (Plan & plan : known.plans) {
        const bool fits = from == 0 && plan.tier == tier && still_fits(plan, limits);
        if (fits && core_.inner.usable() && take_again(plan, known.info.vision, limits, core_.cache)) return plan;
    }
    known.plans.clear(); // anything else is stale
    core_.stats.n_plans++;
    PlanLimits with_rows = limits;
    with_rows.rows_node = rows_node_;
    with_rows.rows_done = rows_done_;
    known.plans.push_back(make_plan(known.info, graph, tier, from, with_rows, core_.inner, core_.cache));
    return known.plans.back();
}

// -- the CPU ---------------------------------------------------------------------

ggml_status Executor::run_on_cpu(ggml_cgraph & graph, int first, int last) {
    const Timed timed(core_.stats.ns_cpu_compute);
    core_.stats.n_segments_cpu++;
    if (first == 0 && last == graph.n_nodes - 1) return cpu_->iface.graph_compute(cpu_, &graph);
    ggml_cgraph view = view_of(graph, first, last);
    return cpu_->iface.graph_compute(cpu_, &view);
}

ggml_status Executor::run_all_on_cpu(ggml_cgraph & graph, const GraphInfo & info) {
    for (size_t w = 0; w < info.state_writes.size(); w++) {
        State & state = *info.roots[static_cast<size_t>(info.state_writes[w].root)].state;
        for (const ByteRange & range : state_ranges_[w].ranges())
            state.mark_dirty(range);
    }
    const GateWindow window(core_.gate);
    const TraceScope scope(core_.trace, XLM_TRACE_CPU, {});
    if (!info.vision) return run_on_cpu(graph, 0, graph.n_nodes - 1);
    // Sub-layer by sub-layer: encoding takes long, and whoever watches sees that it goes on.
    ggml_status status = GGML_STATUS_SUCCESS;
    for (size_t u = 0; u < info.units.size() && status == GGML_STATUS_SUCCESS; u++)
        status = run_on_cpu(graph, info.units[u].first, info.units[u].last);
    return status;
}

// What a replay needs: inputs whose memory the graph itself may reuse.
void Executor::save_inputs(const GraphInfo & info) {
    saved_inputs_.resize(info.inputs.size());
    for (size_t i = 0; i < info.inputs.size(); i++) {
        const ggml_tensor * tensor = info.roots[static_cast<size_t>(info.inputs[i])].tensor;
        const char * data = static_cast<const char *>(tensor->data);
        saved_inputs_[i].assign(data, data + ggml_nbytes(tensor));
    }
}

// The device failed: its activations are gone. Host memory still has what the graph
// started from, so the whole graph runs again on the CPU - unless state that it reads
// was already overwritten.
ggml_status Executor::replay(ggml_cgraph & graph, const GraphInfo & info) {
    core_.lose_device();
    if (info.vision) {
        set_last_error("the device was lost while an image was encoded");
        return GGML_STATUS_FAILED;
    }
    if (!info.replayable && host_state_changed_) {
        set_last_error("the device was lost after recurrent state had changed");
        return GGML_STATUS_FAILED;
    }
    core_.stats.n_replays++;
    for (size_t i = 0; i < info.inputs.size(); i++)
        std::memcpy(info.roots[static_cast<size_t>(info.inputs[i])].tensor->data, saved_inputs_[i].data(),
                    saved_inputs_[i].size());
    return run_all_on_cpu(graph, info);
}

} // namespace xlm
