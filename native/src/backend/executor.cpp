#include "executor.hpp"

#include "buffer.hpp"
#include "errors.hpp"

#include "ggml-cpu.h"

#include <cstring>
#include <thread>

namespace xlm {

namespace {

// Of uploads queued for the ring: while the CPU computes, nobody queues more.
constexpr uint64_t kRingAheadNs = 2 * kQueueNs;
// Of a vision graph in flight, within kQueueNs: parts of a sub-layer may be short, and waiting for each wakes the host
// as often.
constexpr uint32_t kVisionSegments = 8;
constexpr size_t kSegmentsBeforeExperts = 2; // a layer's attention and its router
constexpr size_t kKnownGraphs = 8;           // prefill, decode and their variants of one context

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

// What a run of nodes belongs to, for traces.
TraceLabel label_of(const GraphInfo & info, int first, int last) {
    TraceLabel label;
    int owner = -1;
    for (int i = first; i <= last; i++) {
        const Node & node = info.nodes[static_cast<size_t>(i)];
        if (node.view || node.owner == owner) continue;
        owner = node.owner;
        const SubLayer * sublayer = owner < 0 ? nullptr : info.units[static_cast<size_t>(owner)].sublayer;
        if (!sublayer) continue;
        if (label.n_sublayers++ == 0) label.sublayer = static_cast<int32_t>(sublayer->index);
    }
    return label;
}

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
    limits.reserve_bytes = core_.schedule.reserve_bytes;
    limits.window_bytes = core_.schedule.expert_window_bytes;
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
    for (auto it = known_.begin(); it != known_.end(); ++it) {
        const GraphInfo & info = it->info;
        if (graph.uid == 0 || info.uid != graph.uid || info.nodes_pointer != graph.nodes ||
            info.nodes.size() != static_cast<size_t>(graph.n_nodes))
            continue;
        known_.splice(known_.begin(), known_, it);
        return known_.front();
    }
    CoreResolver resolver(core_);
    known_.push_front({analyse_graph(graph, resolver), {}});
    if (known_.size() > kKnownGraphs) known_.pop_back();
    generation_ = core_.registry.generation(); // analysing may have found new tensors
    return known_.front();
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
        const bool same = plan.tier == tier && plan.from == 0 && !plan.partial && plan.epoch == core_.cache.epoch();
        if (from == 0 && same && still_fits(plan, limits)) return plan;
    }
    known.plans.clear(); // anything else is stale
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

// -- a plan ----------------------------------------------------------------------

Executor::Outcome Executor::run_plan(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                     const PlanLimits & limits) {
    const uint64_t ahead_bytes = core_.upload_pace.cost_within(kRingAheadNs);
    if (plan.uses_device && !core_.cache.ring.begin(plan.stream_order, ahead_bytes)) return Outcome::lost;
    for (size_t s = 0; s < plan.segments.size();) {
        const Segment & segment = plan.segments[s];
        if (!rest_at_border() || !serve_at_border(info, plan, segment)) return Outcome::lost;
        if (core_.abort_step.load()) return Outcome::aborted;
        core_.cache.ring.hold(experts_near(plan, s));
        // One for the CPU needs nothing of the plan's; of an image it may have a place on the device by now.
        const bool looks = segment.on_device || (info.vision && gave_way_at_ != segment.first);
        if (looks && core_.cache.epoch() != epoch_) {
            gave_way_at_ = plan.from = segment.first;
            return Outcome::replan;
        }
        const Outcome outcome = segment.on_device            ? run_device_segment(graph, info, plan, segment, limits)
                                : notes_masks(plan, segment) ? note_masks(graph, info, segment)
                                                             : run_cpu_segment(graph, info, plan, segment);
        if (outcome == Outcome::interrupted) { // by a reclaim, before anything of it ran or with that kept
            gave_way_at_ = segment.first;
            if (!give_way(info, plan, segment)) return Outcome::lost;
            continue;
        }
        if (outcome != Outcome::done) return outcome;
        if (segment.embeds) note_inputs(graph, info, plan, s + 1);
        s++;
    }
    return canonicalise(info, plan, graph.n_nodes) ? Outcome::done : Outcome::lost;
}

// A copy takes its turn behind what is queued already: what is on its way when a router's choice becomes known holds
// up the experts that the step waits for. Weights for later go behind those instead.
bool Executor::experts_near(const Plan & plan, size_t s) {
    const size_t end = std::min(plan.segments.size(), s + kSegmentsBeforeExperts + 1);
    for (; s < end; s++)
        if (plan.segments[s].experts >= 0) return true;
    return false;
}

// Only attention on the device reads the mask, if anything runs there.
bool Executor::notes_masks(const Plan & plan, const Segment & segment) {
    return segment.casts_masks && plan.uses_device;
}

// A segment that gave way once runs before the next reclaim is served: else a storm of them would have it planned
// anew for ever.
bool Executor::wanted_back(const Segment & segment) {
    return gave_way_at_ != segment.first && core_.gate.requested();
}

bool Executor::serve_at_border(const GraphInfo & info, Plan & plan, const Segment & segment) {
    const bool on_device = segment.on_device || notes_masks(plan, segment);
    return (!wanted_back(segment) && on_device && !core_.abort_step.load()) || give_way(info, plan, segment);
}

bool Executor::give_way(const GraphInfo & info, Plan & plan, const Segment & segment) {
    if (!canonicalise(info, plan, segment.first)) return false;
    on_their_way_.clear(); // arrived
    core_.gate.serve_requests();
    return true;
}

// What was submitted is waited for, so that the device idles too.
bool Executor::rest_at_border() {
    if (!core_.rests.slow()) return true;
    if (!ahead_.finish()) return false;
    core_.rest();
    return true;
}

Executor::Outcome Executor::run_cpu_segment(ggml_cgraph & graph, const GraphInfo & info, Plan &,
                                            const Segment & segment) {
    for (int w : segment.state_writes) {
        State & state = *info.roots[static_cast<size_t>(info.state_writes[static_cast<size_t>(w)].root)].state;
        for (const ByteRange & range : state_ranges_[static_cast<size_t>(w)].ranges())
            state.mark_dirty(range);
        host_state_changed_ = true;
    }
    for (int r : segment.writes) {
        on_host_[static_cast<size_t>(r)] = 1;
        on_device_[static_cast<size_t>(r)] = 0;
    }
    ggml_status status;
    {
        const GateWindow window(core_.gate); // host memory is canonical: a reclaim may get in
        write_noted_masks(info, segment);
        const bool traced = core_.trace.on();
        const TraceScope scope(core_.trace, XLM_TRACE_CPU,
                               traced ? label_of(info, segment.first, segment.last) : TraceLabel{});
        status = run_on_cpu(graph, segment.first, segment.last);
    }
    if (status == GGML_STATUS_SUCCESS) return Outcome::done;
    return status == GGML_STATUS_ABORTED ? Outcome::aborted : Outcome::failed;
}

Executor::Outcome Executor::upload_copies(const Segment & segment) {
    Gate * gate = gave_way_at_ == segment.first ? nullptr : &core_.gate;
    const auto outcome = [](WorkAhead::Fed fed) {
        return fed == WorkAhead::Fed::interrupted ? Outcome::interrupted : Outcome::lost;
    };
    for (SubLayer * sublayer : segment.residents) {
        if (sublayer->uploaded && !core_.cache.await(*sublayer)) return Outcome::lost;
        if (sublayer->uploaded) continue;
        const WorkAhead::Fed fed = ahead_.upload(core_.cache, *sublayer, gate);
        if (fed != WorkAhead::Fed::done) return outcome(fed);
    }
    for (State * state : segment.states) {
        const WorkAhead::Fed fed = upload_state(*state, gate);
        if (fed != WorkAhead::Fed::done) return outcome(fed);
    }
    return Outcome::done;
}

bool Executor::upload_activations(const GraphInfo & info, Plan & plan, const Segment & segment) {
    for (int r : segment.needs) {
        if (on_device_[static_cast<size_t>(r)]) continue;
        const ggml_tensor * tensor = info.roots[static_cast<size_t>(r)].tensor;
        const size_t bytes = ggml_nbytes(tensor);
        if (bytes > 0 &&
            !core_.inner.set(Stream::compute, &plan.shadows[static_cast<size_t>(r)], tensor->data, 0, bytes))
            return false;
        core_.stats.bytes_activations_up += bytes;
        on_device_[static_cast<size_t>(r)] = 1;
    }
    return true;
}

// Everything the segment reads that the device does not have yet.
Executor::Outcome Executor::prepare(const GraphInfo & info, Plan & plan, const Segment & segment) {
    const Outcome copies = upload_copies(segment);
    if (copies != Outcome::done) return copies;
    if (!upload_activations(info, plan, segment)) return Outcome::lost;
    const bool ok = segment.by_rows || core_.cache.ring.acquire(segment.pieces.data(), segment.pieces.size());
    return ok ? Outcome::done : Outcome::lost;
}

Executor::Outcome Executor::run_device_segment(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                               const Segment & segment, const PlanLimits & limits) {
    if (core_.trace.on()) core_.inner.label(label_of(info, segment.first, segment.last));
    const Outcome submitted = segment.experts >= 0 ? run_experts(graph, info, plan, segment)
                                                   : run_ordinary(graph, info, plan, segment, limits);
    if (submitted != Outcome::done || segment.by_rows) return submitted;
    for (int r : segment.writes) {
        on_device_[static_cast<size_t>(r)] = 1;
        on_host_[static_cast<size_t>(r)] = 0;
    }
    if (!write_back(info, segment)) return Outcome::lost;
    if (segment.experts >= 0) core_.cache.ring.hold(false); // those of this one are queued
    return core_.cache.ring.retire(segment.pieces.size()) ? Outcome::done : Outcome::lost;
}

Pace & Executor::pace_of(const Segment & segment) {
    if (segment.tiled) return vision_paces_.tiled_attention;
    if (segment.embeds) return vision_paces_.embedding;
    return segment.pieces.empty() ? *pace_ : *stream_pace_;
}

bool Executor::make_room(const Pace & pace, uint64_t cost, uint32_t n_units, const PlanLimits & limits) {
    const uint32_t max_units = pace.known() ? limits.max_units_in_flight : limits.max_units_of_unknown_pace;
    return ahead_.make_room(pace.predict_ns(cost), n_units, max_units);
}

Executor::Outcome Executor::run_ordinary(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                         const Segment & segment, const PlanLimits & limits) {
    const Outcome prepared = prepare(info, plan, segment);
    if (prepared != Outcome::done) return prepared;
    if (segment.by_rows) return run_by_rows(graph, info, segment, limits);
    const bool in_parts = segment.embeds || segment.tiled; // they make room for each
    if (!in_parts && !make_room(pace_of(segment), segment.cost, segment.n_units, limits)) return Outcome::lost;
    if (wanted_back(segment)) return Outcome::interrupted; // while it waited: nothing more is queued before a reclaim
    return submit(graph, info, plan, segment, limits);
}

Executor::Outcome Executor::run_experts(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                        const Segment & segment) {
    switch (experts_.run(graph, info, plan, segment)) {
    case ExpertRunner::Result::done: return Outcome::done;
    case ExpertRunner::Result::interrupted: return Outcome::interrupted; // aborted too: the border notices
    case ExpertRunner::Result::failed: return canonicalise(info, plan, segment.first) ? Outcome::failed : Outcome::lost;
    default: return Outcome::lost;
    }
}

Executor::Outcome Executor::submit(ggml_cgraph & graph, const GraphInfo & info, Plan & plan, const Segment & segment,
                                   const PlanLimits & limits) {
    if (segment.embeds || segment.tiled) return submit_parts(graph, info, plan, segment, limits);
    bool ok = false;
    {
        const Patched patched(*this, segment);
        ok = segment.tile_units ? compute_patches(graph, info, segment)
                                : compute_range(graph, segment.first, segment.last);
    }
    return ok && note_submitted(segment) ? Outcome::done : Outcome::lost;
}

// What may take far longer than a reclaim should wait: it gives way between any two parts.
Executor::Outcome Executor::submit_parts(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                         const Segment & segment, const PlanLimits & limits) {
    if (!restore_partial(plan, segment)) return Outcome::lost;
    Outcome outcome;
    {
        const Patched patched(*this, segment);
        outcome = segment.tiled ? compute_tiles(graph, info, plan, segment, limits)
                                : embed_patches(graph, info, plan, segment, limits);
    }
    if (outcome == Outcome::interrupted && !keep_partial(info, plan, segment)) return Outcome::lost;
    if (outcome == Outcome::done) core_.stats.n_segments_device++;
    return outcome;
}

bool Executor::compute_range(ggml_cgraph & graph, int first, int last) {
    if (first > last) return true;
    ggml_cgraph view = view_of(graph, first, last);
    return core_.inner.compute(&view);
}

bool Executor::note_submitted(const Segment & segment) {
    core_.stats.n_segments_device++;
    return ahead_.submitted(pace_of(segment), segment.cost, segment.n_units);
}

void Executor::patch(const Segment & segment) {
    saved_.clear();
    saved_sources_.clear();
    saved_.reserve(segment.data.size()); // nothing may throw half-way
    saved_sources_.reserve(segment.sources.size());
    for (const DataPatch & entry : segment.data) {
        ggml_tensor * tensor = entry.tensor;
        saved_.push_back({tensor, tensor->data, tensor->buffer, tensor->view_src});
        tensor->data = static_cast<char *>(entry.base->data) + entry.offset;
        tensor->buffer = entry.base->buffer;
        if (entry.view_of_base) tensor->view_src = entry.base;
    }
    for (const SourcePatch & entry : segment.sources) {
        saved_sources_.push_back(*entry.slot);
        *entry.slot = entry.shadow;
    }
}

void Executor::unpatch(const Segment & segment) {
    for (size_t i = segment.sources.size(); i-- > 0;)
        *segment.sources[i].slot = saved_sources_[i];
    for (size_t i = saved_.size(); i-- > 0;) {
        saved_[i].tensor->data = saved_[i].data;
        saved_[i].tensor->buffer = saved_[i].buffer;
        saved_[i].tensor->view_src = saved_[i].view_src;
    }
}

bool Executor::fetch_root(const GraphInfo & info, Plan & plan, int r) {
    if (on_host_[static_cast<size_t>(r)]) return true;
    const ggml_tensor * tensor = info.roots[static_cast<size_t>(r)].tensor;
    const size_t bytes = ggml_nbytes(tensor);
    if (bytes > 0 && !core_.inner.get(Stream::compute, &plan.shadows[static_cast<size_t>(r)], tensor->data, 0, bytes))
        return false;
    core_.stats.bytes_activations_down += bytes;
    on_host_[static_cast<size_t>(r)] = 1;
    return true;
}

bool Executor::canonicalise(const GraphInfo & info, Plan & plan, int from) {
    if (!core_.inner.present() || plan.shadows.empty()) return true;
    for (size_t r = 0; r < info.roots.size(); r++) {
        const Root & root = info.roots[r];
        if (on_host_[r] || (root.last_use < from && !root.escapes)) continue;
        if (!fetch_root(info, plan, static_cast<int>(r))) return false;
    }
    if (!flush_writes(info, Stream::compute)) return false;
    if (!core_.inner.synchronize(Stream::download)) return false;
    return ahead_.finish() && core_.inner.healthy();
}

} // namespace xlm
