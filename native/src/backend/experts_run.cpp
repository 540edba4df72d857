#include "experts_run.hpp"

#include "errors.hpp"
#include "executor.hpp"
#include "experts_graph.hpp"
#include "experts_pass.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace xlm {

namespace {

// The CPU takes part in steps of few tokens only: with many, an expert's rows are many and the device is quicker.
constexpr uint32_t kMaxCpuTokens = 16, kMaxCpuPairs = 64;
// A stopped core is begun again; more often than that in a graph, and it would never end.
constexpr int kMaxInterrupts = 2;
// Uploads through the window that wait for its readers on the device; each takes two events from a pool.
constexpr size_t kMostQueued = 96;
// Launches start at such indices: some devices want the offsets of their arguments aligned.
constexpr uint32_t kIndexStep = 64;

struct ContextFree {
    void operator()(ggml_context * context) const { ggml_free(context); }
};
using Context = std::unique_ptr<ggml_context, ContextFree>;

// A graph of n nodes and the tensors of some passes, in `memory`.
Context make_context(std::vector<char> & memory, size_t n_passes, size_t n_nodes, ggml_cgraph *& graph) {
    const size_t bytes =
        ggml_tensor_overhead() * kPassTensors * n_passes + ggml_graph_overhead_custom(n_nodes, false) + 4096;
    if (memory.size() < bytes) memory.resize(bytes);
    Context context(ggml_init({memory.size(), memory.data(), true}));
    if (!context) throw std::bad_alloc();
    graph = ggml_new_graph_custom(context.get(), n_nodes, false);
    return context;
}

} // namespace

// What the CPU computes: nodes first to last of the graph.
struct ExpertRunner::CpuPart {
    Context context{};
    ggml_cgraph * graph = nullptr;
    std::vector<int32_t> tokens{}, experts{}; // by pair
    int first = 0, last = -1;
};

struct ExpertRunner::Step {
    ggml_cgraph & graph;
    const GraphInfo & info;
    Plan & plan;
    const Segment & segment;
    const ExpertGroup & group;
    ExpertState & state;
    const ExpertPlace & place;
    ExpertScratch scratch;

    std::vector<int32_t> ids{}; // by pair: the expert
    ExpertDemand demand{};
    ExpertDecision decision{};
    ggml_backend_event_t fetched = nullptr; // the core's inputs
    std::optional<Executor::Patched> patched{};
    std::optional<CpuPart> cpu{}; // once it has begun
    std::vector<Batch> batches{};
    size_t n_queued = 0;                                 // uploads through the window
    std::vector<int32_t> tokens{}, pairs{}, local_ids{}; // by launch: row of a token, row of a pair, expert at hand

    size_t n_uploads() const { return decision.loads.size() + decision.in_window.size() + decision.behind.size(); }
    bool all_on_cpu() const { return decision.in_slots.empty() && decision.in_window.empty(); }
    bool cpu_possible() const { return group.by_row && group.n_tokens <= kMaxCpuTokens && state.policy.cpu_ns > 0; }
    // Another group of the same experts later in the graph would find slots whose upload is not waited for.
    bool only_of_its_layer() const {
        return std::count_if(info.experts.begin(), info.experts.end(),
                             [&](const ExpertGroup & other) { return other.sublayer == group.sublayer; }) == 1;
    }
    const ExpertMatmul * matmul_at(int node) const {
        for (const ExpertMatmul & matmul : group.matmuls)
            if (matmul.node == node) return &matmul;
        return nullptr;
    }
    // Rows of the input are per token, or per pair.
    bool input_by_token(const ExpertMatmul & matmul) const { return graph.nodes[matmul.node]->src[1]->ne[1] == 1; }
};

void ExpertRunner::begin_graph() {
    const uint64_t with_rests_ns = core_.stats.ns_graph.get();
    const uint64_t total_ns = with_rests_ns - std::min(with_rests_ns, core_.stats.ns_paced.get());
    last_graph_ns_ = total_ns - std::min(total_ns, graph_begin_ns_);
    graph_begin_ns_ = total_ns;
    behind_ns_ = 0;
    n_interrupts_ = 0;
}

ExpertRunner::Result ExpertRunner::run(ggml_cgraph & graph, const GraphInfo & info, Plan & plan,
                                       const Segment & segment) {
    const size_t g = static_cast<size_t>(segment.experts);
    const ExpertGroup & group = info.experts[g];
    Step step{graph, info, plan, segment, group, *group.sublayer->experts, plan.experts[g], expert_scratch(group)};
    if (!fetch_ids(step)) return Result::lost;
    if (!read_ids(step)) return Result::failed;
    const Executor::Outcome prepared = executor_.prepare(info, plan, segment);
    if (prepared != Executor::Outcome::done)
        return prepared == Executor::Outcome::interrupted ? Result::interrupted : Result::lost;
    decide(step);
    if (!fetch_inputs(step) || !load(step)) return Result::lost;
    note(step);
    return submit(step);
}

// The device is idle afterwards.
bool ExpertRunner::fetch_ids(Step & step) {
    if (!executor_.fetch_root(step.info, step.plan, step.group.ids_root)) return false;
    if (!executor_.ahead_.finish()) return false;
    executor_.end_lull();
    core_.cache.ring.arrived();
    in_flight_.clear();
    core_.cache.window.all_read();
    return true;
}

bool ExpertRunner::read_ids(Step & step) {
    const ggml_tensor & ids = *step.group.ids;
    step.demand.pairs.assign(step.state.n_experts, 0);
    step.demand.n_used = step.group.n_used;
    for (uint32_t t = 0; t < step.group.n_tokens; t++) {
        for (uint32_t k = 0; k < step.group.n_used; k++) {
            const char * at = static_cast<const char *>(ids.data) + t * ids.nb[1] + k * ids.nb[0];
            const int32_t expert = *reinterpret_cast<const int32_t *>(at);
            if (expert < 0 || static_cast<uint32_t>(expert) >= step.state.n_experts) {
                const std::string message = "a router chose expert " + std::to_string(expert) + " of " +
                                            std::to_string(step.state.n_experts) + ": the device computes nonsense";
                set_last_error(message.c_str());
                return false;
            }
            step.ids.push_back(expert);
            step.demand.pairs[static_cast<size_t>(expert)]++;
        }
    }
    return true;
}

// All that the core reads, where the CPU takes part. They come beside the experts' uploads.
bool ExpertRunner::fetch_inputs(Step & step) {
    if (step.decision.on_cpu.empty()) return true;
    for (int r : step.group.inputs)
        if (!executor_.fetch_root(step.info, step.plan, r)) return false;
    if (!core_.inner.has_events()) return executor_.ahead_.finish();
    step.fetched = core_.inner.next_event(Events::experts);
    return core_.inner.record(Stream::compute, step.fetched);
}

void ExpertRunner::decide(Step & step) {
    const xlm_expert_policy & policy = step.state.policy;
    step.demand.n_cpu_pairs_max = step.cpu_possible() ? kMaxCpuPairs : 0;
    const bool time_left = behind_ns_ + policy.upload_ns <= last_graph_ns_ / 2;
    step.demand.n_behind_max = step.cpu_possible() && time_left && step.only_of_its_layer() ? 1 : 0;
    const std::lock_guard<std::mutex> lock(step.state.mutex);
    step.state.scores.note(step.demand.pairs, step.group.n_tokens);
    step.decision = decide_experts(step.state.map, step.state.scores.values(), step.demand, policy);
    behind_ns_ += policy.upload_ns * step.decision.behind.size();
}

// On the compute stream: the step waits for them anyway, and it is idle. What the slots held is not read any more.
bool ExpertRunner::load(Step & step) {
    for (const SlotLoad & load : step.decision.loads)
        if (!load_slot(core_.inner, Stream::compute, *step.group.sublayer, load)) return false;
    return true;
}

// On the download stream, which is idle at the end of every graph: the next step finds them there.
bool ExpertRunner::queue_behind(Step & step) {
    for (const SlotLoad & load : step.decision.behind)
        if (!load_slot(core_.inner, Stream::download, *step.group.sublayer, load)) return false;
    return true;
}

void ExpertRunner::note(Step & step) {
    const ExpertDecision & decision = step.decision;
    const uint64_t each = expert_bytes(*step.group.sublayer);
    const uint64_t uploaded = each * (decision.loads.size() + decision.in_window.size() + decision.behind.size());
    const uint64_t whole = each * step.state.n_experts, saved = whole - std::min(whole, uploaded);
    Stats & stats = core_.stats;
    stats.expert_steps++;
    stats.expert_hits += decision.n_hits;
    stats.expert_misses += decision.n_misses;
    stats.expert_cpu += decision.on_cpu.size();
    stats.expert_bytes_uploaded += uploaded;
    stats.expert_bytes_saved += saved;
    const std::lock_guard<std::mutex> lock(step.state.mutex);
    ExpertReport & report = step.state.report;
    report.n_used = step.group.n_used;
    report.n_steps++;
    report.n_tokens += step.group.n_tokens;
    report.n_hits += decision.n_hits;
    report.n_misses += decision.n_misses;
    report.n_cpu += decision.on_cpu.size();
    report.bytes_uploaded += uploaded;
    report.bytes_saved += saved;
    report.n_filled = step.state.map.n_filled();
}

// -- submitting ----------------------------------------------------------------------------------------

ExpertRunner::Result ExpertRunner::submit(Step & step) {
    step.patched.emplace(executor_, step.segment);
    const Result given = step.all_on_cpu()       ? Result::done
                         : step.decision.compact ? submit_core(step)
                                                 : submit_passes(step);
    if (given != Result::done) return given;
    if (!queue_behind(step)) return Result::lost;
    const Result computed = take_cpu_part(step);
    if (computed != Result::done) return computed;
    if (!upload_cpu_rows(step)) return Result::lost;
    if (!executor_.compute_range(step.graph, step.group.last + 1, step.segment.last)) return Result::lost;
    return executor_.note_submitted(step.segment) ? Result::done : Result::lost;
}

// All of the core as it is, with the slots for experts. What the CPU computes gets slots too, any that its token
// does not use: the rows are overwritten.
ExpertRunner::Result ExpertRunner::submit_core(Step & step) {
    if (!upload_slot_ids(step)) return Result::lost;
    return executor_.compute_range(step.graph, step.group.first, step.group.last) ? Result::done : Result::lost;
}

bool ExpertRunner::upload_slot_ids(Step & step) {
    const SlotMap & map = step.state.map;
    const uint32_t n_used = step.group.n_used;
    std::vector<int32_t> & slots = in_flight_.emplace_back(step.ids.size());
    std::vector<uint8_t> taken(map.n_slots());
    for (size_t begin = 0; begin < slots.size(); begin += n_used) {
        std::fill(taken.begin(), taken.end(), uint8_t{0});
        for (const SlotLoad & load : step.decision.behind)
            taken[load.slot] = 1;
        for (uint32_t k = 0; k < n_used; k++) {
            slots[begin + k] = map.slot_of(static_cast<uint32_t>(step.ids[begin + k]));
            if (slots[begin + k] >= 0) taken[static_cast<size_t>(slots[begin + k])] = 1;
        }
        size_t spare = 0;
        for (uint32_t k = 0; k < n_used; k++) {
            if (slots[begin + k] >= 0) continue;
            while (taken[spare])
                spare++;
            slots[begin + k] = static_cast<int32_t>(spare++);
        }
    }
    ggml_tensor ids = step.place.slot_ids;
    return core_.inner.set(Stream::compute, &ids, slots.data(), 0, slots.size() * sizeof(int32_t));
}

// Matrix by matrix, each in batches of experts that are at hand together; what lies between two matrices runs
// as it is, on all rows.
ExpertRunner::Result ExpertRunner::submit_passes(Step & step) {
    make_batches(step);
    if (!upload_indices(step)) return Result::lost;
    int next = step.group.first;
    for (const ExpertMatmul & matmul : step.group.matmuls) {
        if (!executor_.compute_range(step.graph, next, matmul.node - 1)) return Result::lost;
        for (const Batch & batch : step.batches) {
            const Result result = run_batch(step, matmul, batch);
            if (result != Result::done) return result;
        }
        next = matmul.node + 1;
    }
    const uint64_t n_passes = step.batches.size() * step.group.matmuls.size();
    core_.stats.expert_passes += n_passes;
    const std::lock_guard<std::mutex> lock(step.state.mutex);
    step.state.report.n_passes += n_passes;
    return Result::done;
}

void ExpertRunner::make_batches(Step & step) {
    if (!step.decision.in_slots.empty()) step.batches.push_back({true, step.decision.in_slots, {}});
    const std::vector<uint32_t> & streamed = step.decision.in_window;
    // The plan saw to it that there is a window where one may be needed.
    const size_t most =
        std::max<size_t>(1, core_.cache.window.experts_per_part(largest_expert_bytes(*step.group.sublayer)));
    for (size_t begin = 0; begin < streamed.size(); begin += most) {
        const size_t end = std::min(streamed.size(), begin + most);
        step.batches.push_back({false,
                                {streamed.begin() + static_cast<std::ptrdiff_t>(begin),
                                 streamed.begin() + static_cast<std::ptrdiff_t>(end)},
                                {}});
    }
    std::vector<std::vector<int32_t>> pairs_of(step.state.n_experts);
    for (size_t p = 0; p < step.ids.size(); p++)
        pairs_of[static_cast<size_t>(step.ids[p])].push_back(static_cast<int32_t>(p));
    for (Batch & batch : step.batches)
        list_pairs(step, batch, pairs_of);
}

// An expert's pairs stay in one launch, as far as they fit one: kernels choose by how many rows an expert has.
void ExpertRunner::list_pairs(Step & step, Batch & batch, const std::vector<std::vector<int32_t>> & pairs_of) {
    const size_t cap = step.scratch.pairs_per_pass;
    size_t open = 0; // pairs of the open launch
    for (size_t i = 0; i < batch.experts.size(); i++) {
        const std::vector<int32_t> & pairs = pairs_of[batch.experts[i]];
        const int32_t local = batch.in_slots ? step.state.map.slot_of(batch.experts[i]) : static_cast<int32_t>(i);
        const size_t n_parts = (pairs.size() + cap - 1) / cap;
        for (size_t part = 0; part < n_parts; part++) {
            const size_t begin = pairs.size() * part / n_parts, end = pairs.size() * (part + 1) / n_parts;
            if (open == 0 || open + (end - begin) > cap) open_launch(step, batch), open = 0;
            for (size_t p = begin; p < end; p++) {
                step.tokens.push_back(pairs[p] / static_cast<int32_t>(step.group.n_used));
                step.pairs.push_back(pairs[p]);
                step.local_ids.push_back(local);
            }
            open += end - begin;
            batch.launches.back().second = static_cast<uint32_t>(open);
        }
    }
}

void ExpertRunner::open_launch(Step & step, Batch & batch) {
    const size_t begin = (step.pairs.size() + kIndexStep - 1) / kIndexStep * kIndexStep;
    for (std::vector<int32_t> * list : {&step.tokens, &step.pairs, &step.local_ids})
        list->resize(begin, 0);
    batch.launches.emplace_back(static_cast<uint32_t>(begin), 0);
}

// In one copy, one list behind the other: each copy costs far more than its bytes.
bool ExpertRunner::upload_indices(Step & step) {
    std::vector<int32_t> & all = in_flight_.emplace_back();
    const auto append = [&](const std::vector<int32_t> & list, uint64_t & offset) {
        offset = step.scratch.tokens + all.size() * sizeof(int32_t);
        all.insert(all.end(), list.begin(), list.end());
        all.resize((all.size() + kIndexStep - 1) / kIndexStep * kIndexStep);
    };
    uint64_t tokens = 0;
    append(step.tokens, tokens);
    append(step.pairs, step.scratch.pairs);
    append(step.local_ids, step.scratch.local_ids);
    if (all.empty()) return true;
    ggml_tensor tensor = step.place.slot_ids;
    tensor.ne[0] = static_cast<int64_t>(all.size());
    tensor.ne[1] = 1;
    tensor.nb[1] = tensor.nb[2] = tensor.nb[3] = all.size() * sizeof(int32_t);
    tensor.data = scratch_at(step, step.scratch.tokens);
    return core_.inner.set(Stream::compute, &tensor, all.data(), 0, all.size() * sizeof(int32_t));
}

char * ExpertRunner::scratch_at(const Step & step, uint64_t offset) const {
    return core_.cache.scratch().base() + step.place.offset + offset;
}

bool ExpertRunner::interrupted() {
    if (n_interrupts_ >= kMaxInterrupts) return false;
    if (!core_.abort_step.load() && !(core_.gate.requested() && core_.ledger.over_budget())) return false;
    n_interrupts_++;
    return true;
}

ExpertRunner::Result ExpertRunner::run_batch(Step & step, const ExpertMatmul & matmul, const Batch & batch) {
    ExpertWindow & window = core_.cache.window;
    if (!batch.in_slots && !window.present()) return Result::lost;
    // The CPU begins once all is queued that fits: no upload waits for it, and it for none.
    if (!batch.in_slots && window.full() && step.n_queued >= kMostQueued) {
        const Result computed = take_cpu_part(step);
        if (computed != Result::done) return computed;
    }
    // What the CPU wrote may lie where the core's input was: it is not begun again then.
    if (!step.cpu && interrupted()) return Result::interrupted;
    ggml_tensor streamed{};
    const bool host_waits = step.decision.on_cpu.empty() || step.cpu;
    if (!batch.in_slots && !window.upload(*matmul.weight, batch.experts, streamed, host_waits)) return Result::lost;
    step.n_queued += !batch.in_slots;
    ggml_tensor & matrix = batch.in_slots ? step.state.compact[matmul.index] : streamed;
    for (const auto & pairs : batch.launches)
        if (!launch(step, matmul, matrix, pairs)) return Result::lost;
    return batch.in_slots || window.submitted() ? Result::done : Result::lost;
}

bool ExpertRunner::launch(Step & step, const ExpertMatmul & matmul, ggml_tensor & matrix,
                          std::pair<uint32_t, uint32_t> pairs) {
    const auto index_at = [&](uint64_t offset) {
        return reinterpret_cast<const int32_t *>(scratch_at(step, offset)) + pairs.first;
    };
    PassPlaces places;
    places.buffer = core_.cache.scratch().get();
    places.rows = scratch_at(step, step.scratch.rows);
    places.results = scratch_at(step, step.scratch.results);
    places.sources = index_at(step.input_by_token(matmul) ? step.scratch.tokens : step.scratch.pairs);
    places.experts = index_at(step.scratch.local_ids);
    places.targets = index_at(step.scratch.pairs);
    places.n_pairs = pairs.second;
    ggml_cgraph * graph = nullptr;
    const Context context = make_context(context_memory_, 1, kPassTensors, graph);
    append_pass(context.get(), graph, *step.graph.nodes[matmul.node], matrix, places);
    return core_.inner.compute(graph);
}

// -- the CPU's part --------------------------------------------------------------------------------------

// Once a step. Rows of caches go home meanwhile: the ids have passed.
ExpertRunner::Result ExpertRunner::take_cpu_part(Step & step) {
    if (!executor_.send_rows_home(step.info)) return Result::lost;
    if (step.decision.on_cpu.empty() || step.cpu) return Result::done;
    // The CPU is about to read the inputs, and to write to host memory that an upload before them may have read.
    if (step.fetched && !core_.inner.wait_host(std::exchange(step.fetched, nullptr))) return Result::lost;
    Lull & lull = step.plan.cpu_lulls[static_cast<size_t>(&step.segment - step.plan.segments.data())];
    if (!core_.cache.ring.grant(lull.ns(), true)) return Result::lost;
    step.patched.reset();
    make_cpu_part(step);
    const uint64_t begin_ns = now_ns();
    const Result result = run_cpu_part(step, *step.cpu);
    const uint64_t took_ns = now_ns() - begin_ns, uploads_ns = step.n_uploads() * step.state.policy.upload_ns;
    lull.learn(took_ns - std::min(took_ns, uploads_ns));
    step.patched.emplace(executor_, step.segment);
    return result;
}

void ExpertRunner::make_cpu_part(Step & step) {
    CpuPart & part = step.cpu.emplace();
    std::vector<uint8_t> on_cpu(step.state.n_experts);
    for (uint32_t expert : step.decision.on_cpu)
        on_cpu[expert] = 1;
    cpu_pairs_.clear();
    for (size_t p = 0; p < step.ids.size(); p++) {
        if (!on_cpu[static_cast<size_t>(step.ids[p])]) continue;
        part.tokens.push_back(static_cast<int32_t>(p / step.group.n_used));
        cpu_pairs_.push_back(static_cast<int32_t>(p));
        part.experts.push_back(step.ids[p]);
    }
    if (!step.all_on_cpu()) return make_cpu_passes(step, part);
    part.graph = &step.graph; // as it is
    part.first = step.group.first;
    part.last = step.group.last;
}

// The core on host memory, with only the CPU's pairs in the matrices. Other rows hold whatever the memory held:
// they are not read by what the CPU's rows become.
void ExpertRunner::make_cpu_passes(Step & step, CpuPart & part) {
    PassPlaces places;
    places.experts = part.experts.data();
    places.targets = cpu_pairs_.data();
    places.n_pairs = static_cast<int64_t>(part.experts.size());
    const ExpertScratch & scratch = step.scratch;
    const size_t rows_bytes = scratch.bytes - scratch.rows; // rows and results, for at least as many pairs
    if (cpu_memory_.size() < rows_bytes + 64) cpu_memory_.resize(rows_bytes + 64);
    places.rows = cpu_memory_.data() + 64 - reinterpret_cast<uintptr_t>(cpu_memory_.data()) % 64;
    places.results = static_cast<char *>(places.rows) + (scratch.results - scratch.rows);
    make_cpu_graph(step, part, places);
}

void ExpertRunner::make_cpu_graph(Step & step, CpuPart & part, PassPlaces & places) {
    const size_t n_matmuls = step.group.matmuls.size();
    const size_t n_nodes = static_cast<size_t>(step.group.last - step.group.first + 1) + kPassTensors * n_matmuls;
    part.context = make_context(cpu_context_memory_, n_matmuls, n_nodes, part.graph);
    for (int i = step.group.first; i <= step.group.last; i++) {
        const ExpertMatmul * matmul = step.matmul_at(i);
        if (!matmul) {
            part.graph->nodes[part.graph->n_nodes++] = step.graph.nodes[i];
            continue;
        }
        places.sources = step.input_by_token(*matmul) ? part.tokens.data() : places.targets;
        append_pass(part.context.get(), part.graph, *step.graph.nodes[i],
                    const_cast<ggml_tensor &>(*matmul->weight->tensor), places);
    }
    part.last = part.graph->n_nodes - 1;
}

ExpertRunner::Result ExpertRunner::run_cpu_part(Step & step, const CpuPart & part) {
    ggml_cgraph nodes = view_of(*part.graph, part.first, part.last);
    const Timed timed(core_.stats.ns_cpu_compute);
    const TraceScope scope(core_.trace, XLM_TRACE_CPU, {static_cast<int32_t>(step.group.sublayer->index), 1});
    const ggml_status status = executor_.compute_on_cpu(nodes, static_cast<int>(step.state.policy.cpu_threads));
    if (status == GGML_STATUS_SUCCESS) return Result::done;
    return status == GGML_STATUS_ABORTED ? Result::interrupted : Result::failed;
}

// Neighbours in one copy: each costs far more than its bytes.
bool ExpertRunner::upload_cpu_rows(Step & step) {
    if (!step.cpu) return true;
    step.patched.reset(); // the rows are in host memory
    const ggml_tensor & result = *step.graph.nodes[step.group.last];
    const int root = step.info.nodes[static_cast<size_t>(step.group.last)].root;
    ggml_tensor & shadow = step.plan.shadows[static_cast<size_t>(root)];
    for (size_t begin = 0, end = 1; begin < cpu_pairs_.size(); begin = end++) {
        while (end < cpu_pairs_.size() && cpu_pairs_[end] == cpu_pairs_[end - 1] + 1)
            end++;
        const size_t offset = static_cast<size_t>(cpu_pairs_[begin]) * result.nb[1];
        const size_t bytes = (end - begin) * result.nb[1];
        if (!core_.inner.set(Stream::compute, &shadow, static_cast<const char *>(result.data) + offset, offset, bytes))
            return false;
        core_.stats.bytes_activations_up += bytes;
    }
    step.patched.emplace(executor_, step.segment);
    return true;
}

} // namespace xlm
