// A plan as it runs: segment by segment, with what each reads brought to where it computes, and the borders between
// them, at which steps rest and give way to reclaims.
#include "executor.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace xlm {

namespace {

// Of uploads queued for the ring: while the CPU computes, nobody queues more.
constexpr uint64_t kRingAheadNs = 2 * kQueueNs;
constexpr size_t kSegmentsBeforeExperts = 2; // a layer's attention and its router
constexpr size_t kSegmentsOfLayer = 4;       // the same where weights and caches of attention stream

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

} // namespace

Executor::Outcome Executor::run_plan(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                     const PlanLimits & limits) {
    if (!begin_ring(plan)) return Outcome::lost;
    for (size_t s = 0; s < plan.segments.size();) {
        const Segment & segment = plan.segments[s];
        if (!rest_at_border() || !serve_at_border(info, plan, segment)) return Outcome::lost;
        if (core_.abort_step.load()) return Outcome::aborted;
        core_.cache.ring.hold(experts_near(plan, s, kSegmentsOfLayer));
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
    core_.bring_output();
    return canonicalise(info, plan, graph.n_nodes) ? Outcome::done : Outcome::lost;
}

// A plan for the CPU alone copies nothing, whatever the one before it had in the ring.
bool Executor::begin_ring(Plan & plan) {
    lull_ = nullptr; // of a plan that may be gone
    if (!plan.uses_device) return true;
    const bool held = experts_near(plan, 0, kSegmentsOfLayer);
    Ring & ring = core_.cache.ring;
    if (!ring.begin(plan.stream_order, core_.upload_pace, kRingAheadNs, held, plan.ring_cache_bytes)) return false;
    plan.lulls.resize(plan.segments.size() + 1); // one for the beginning
    plan.cpu_lulls.resize(plan.segments.size());
    return begin_lull(plan.lulls.back(), true);
}

// A copy takes its turn behind what is queued already: what is on its way when a router's choice becomes known holds
// up the experts that the step waits for. So before those of a layer nothing is copied for later but for as long as the
// link is known to have nothing else to do.
bool Executor::experts_near(const Plan & plan, size_t s, size_t within) {
    const size_t end = std::min(plan.segments.size(), s + within + 1);
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

// Behind what is queued the link is free from here on, until a router's ids are there or the CPU is ready: as long as
// it was in the steps before, it copies for later. `hidden`: the gate is not open before the end of it.
bool Executor::begin_lull(Lull & lull, bool hidden) {
    lull_ = &lull;
    lull_begin_ns_ = std::max(now_ns(), core_.cache.ring.free_at_ns());
    return core_.cache.ring.grant(lull.ns(), hidden);
}

void Executor::end_lull() {
    const uint64_t now = now_ns();
    if (Lull * lull = std::exchange(lull_, nullptr)) lull->learn(now - std::min(now, lull_begin_ns_));
}

Executor::Outcome Executor::run_cpu_segment(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                            const Segment & segment) {
    if (plan.uses_device && !begin_lull(lull_of(plan, segment), false)) return Outcome::lost;
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
    end_lull();
    if (status == GGML_STATUS_SUCCESS) return Outcome::done;
    return status == GGML_STATUS_ABORTED ? Outcome::aborted : Outcome::failed;
}

Executor::Outcome Executor::upload_copies(const Segment & segment) {
    Gate * gate = gave_way_at_ == segment.first ? nullptr : &core_.gate;
    const auto outcome = [](WorkAhead::Fed fed) {
        return fed == WorkAhead::Fed::interrupted ? Outcome::interrupted : Outcome::lost;
    };
    for (SubLayer * sublayer : segment.residents) {
        if (!core_.cache.await(*sublayer)) return Outcome::lost;
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
        if (plan.pack.holds(r)) {
            if (!upload_pack(info, plan)) return false;
            continue;
        }
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

// All of it at the first need of any: by then the host has it whole, and changes none of it any more.
bool Executor::upload_pack(const GraphInfo & info, const Plan & plan) {
    packed_.resize(plan.pack.bytes);
    for (const InputPack::Member & member : plan.pack.members) {
        const ggml_tensor & tensor = *info.roots[static_cast<size_t>(member.root)].tensor;
        std::memcpy(packed_.data() + member.offset, tensor.data, ggml_nbytes(&tensor));
        core_.stats.bytes_activations_up += ggml_nbytes(&tensor);
        on_device_[static_cast<size_t>(member.root)] = 1;
    }
    ggml_tensor place = plan.shadows[static_cast<size_t>(plan.pack.carrier)]; // the pack begins with it
    as_bytes(place, packed_.size());
    return core_.inner.set(Stream::compute, &place, packed_.data(), 0, packed_.size());
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
    const size_t next = static_cast<size_t>(&segment - plan.segments.data()) + 1;
    if (!write_back(info, plan, segment, experts_near(plan, next, kSegmentsBeforeExperts))) return Outcome::lost;
    if (!core_.cache.ring.retire(segment.pieces.size())) return Outcome::lost;
    const bool copies = segment.experts >= 0 || !segment.pieces.empty();
    return !copies || begin_lull(lull_of(plan, segment), true) ? Outcome::done : Outcome::lost;
}

Pace & Executor::pace_of(const Segment & segment) {
    if (segment.tiled) return vision_paces_.tiled_attention;
    if (segment.embeds) return vision_paces_.embedding;
    return segment.pieces.empty() || segment.in_place ? *pace_ : *stream_pace_;
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

bool Executor::fetch_root(const GraphInfo & info, Plan & plan, int r, Stream stream) {
    if (on_host_[static_cast<size_t>(r)]) return true;
    const ggml_tensor * tensor = info.roots[static_cast<size_t>(r)].tensor;
    const size_t bytes = ggml_nbytes(tensor);
    if (bytes > 0 && !core_.inner.get(stream, &plan.shadows[static_cast<size_t>(r)], tensor->data, 0, bytes))
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
    if (!core_.inner.synchronize(Stream::download) || !ahead_.finish()) return false;
    core_.cache.ring.arrived();
    return core_.inner.healthy();
}

} // namespace xlm
