// The C control API. Nothing throws out of here.
#include "abi_guard.hpp"
#include "core.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "vtables.hpp"

#include "xlm/xlm_device.h"

#include <algorithm>
#include <cstring>
#include <vector>

using namespace xlm;

namespace {

// Structs of callers may be older (shorter) or newer (longer) than ours.
template <typename T>
T read_struct(const T * source, size_t least) {
    if (!source) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "a required pointer is NULL");
    if (source->struct_size < least)
        throw ApiError(XLM_ERR_INVALID_ARGUMENT, "struct_size is too small; set it to sizeof");
    T result{};
    std::memcpy(&result, source, std::min<size_t>(source->struct_size, sizeof result));
    return result;
}

template <typename T>
void write_struct(T * target, const T & value) {
    if (!target) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "a required pointer is NULL");
    const uint32_t size = target->struct_size;
    if (size < sizeof(uint32_t)) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "struct_size is not set; set it to sizeof");
    std::memcpy(target, &value, std::min<size_t>(size, sizeof value));
    target->struct_size = size;
}

Core & opened_core() {
    if (!core().opened.load()) throw ApiError(XLM_ERR_STATE, "xlm_device_open() was not called");
    return core();
}

void check_config(const xlm_device_config & config) {
    if (!config.inner) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "inner is NULL; \"none\" means CPU only");
    const bool none = std::strcmp(config.inner, "none") == 0;
    if (!none && (!config.inner_library || !*config.inner_library))
        throw ApiError(XLM_ERR_INVALID_ARGUMENT, std::string("inner \"") + config.inner + "\" needs inner_library");
}

void take_config(Core & core, const xlm_device_config & config) {
    core.n_threads = config.n_threads;
    core.max_in_flight_decode = config.max_sublayers_in_flight_decode ? config.max_sublayers_in_flight_decode : 16;
    core.max_in_flight_prefill = config.max_sublayers_in_flight_prefill ? config.max_sublayers_in_flight_prefill : 16;
    core.ledger.set_budget(config.budget_bytes);
}

// ggml's registry keeps what it was given for the life of the process.
void register_once() {
    static const bool done = (ggml_backend_register(registry_handle()), true);
    (void)done;
}

// Waits until no graph runs, then holds the device.
template <typename Body>
void when_idle(Core & core, Body body) {
    const std::lock_guard<std::mutex> running(core.exec_mutex);
    const GateGuard guard(core.gate);
    core.inner.drain();
    body();
}

constexpr uint32_t kMaxTraceEvents = 1 << 20;

std::mutex open_mutex; // open and close exclude each other

} // namespace

xlm_status xlm_device_open(const xlm_device_config * config) {
    return at_boundary([&] {
        const std::lock_guard<std::mutex> lock(open_mutex);
        if (core().opened.load()) throw ApiError(XLM_ERR_STATE, "the device is open already");
        const auto wanted = read_struct(config, offsetof(xlm_device_config, budget_bytes));
        check_config(wanted);
        check_abi();
        core().inner.open(wanted.inner, wanted.inner_library ? wanted.inner_library : "", wanted.inner_index);
        take_config(core(), wanted);
        register_once();
        core().opened = true;
        return XLM_OK;
    });
}

void xlm_device_close(void) {
    at_boundary([&] {
        const std::lock_guard<std::mutex> lock(open_mutex);
        if (!core().opened.exchange(false)) return XLM_OK;
        when_idle(core(), [] { core().cache.drop_all(); });
        core().inner.close();
        core().ledger.set_budget(0);
        return XLM_OK;
    });
}

const char * xlm_device_last_error(void) {
    return last_error();
}
const char * xlm_device_build_info(void) {
    return build_info();
}
const char * xlm_device_inner_description(void) {
    return core().inner.description().c_str();
}

void * xlm_device_ggml_device(void) {
    return device_handle();
}
void * xlm_device_host_buffer_type(void) {
    return weights_buffer_type();
}

xlm_status xlm_device_model_begin(const char * name, uint32_t * model_id) {
    return at_boundary([&] {
        if (!model_id) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "model_id is NULL");
        *model_id = opened_core().registry.begin_model(name);
        return XLM_OK;
    });
}

xlm_status xlm_device_model_end(uint32_t model_id) {
    return at_boundary([&] {
        opened_core().registry.end_scope(model_id);
        return XLM_OK;
    });
}

xlm_status xlm_device_context_begin(uint32_t model_id) {
    return at_boundary([&] {
        opened_core().registry.begin_context(model_id);
        return XLM_OK;
    });
}

xlm_status xlm_device_context_end(uint32_t model_id) {
    return xlm_device_model_end(model_id);
}

uint32_t xlm_device_sublayer_count(void) {
    uint32_t count = 0;
    at_boundary([&] {
        count = core().registry.count();
        return XLM_OK;
    });
    return count;
}

xlm_status xlm_device_sublayer(uint32_t index, xlm_sublayer_info * info) {
    return at_boundary([&] {
        xlm_sublayer_info result{};
        if (!opened_core().registry.describe(index, result))
            throw ApiError(XLM_ERR_INVALID_ARGUMENT, "no sub-layer " + std::to_string(index));
        write_struct(info, result);
        return XLM_OK;
    });
}

xlm_status xlm_device_set_budget(uint64_t budget_bytes, uint64_t timeout_ns, xlm_release * result) {
    return at_boundary([&] {
        Core & device = opened_core();
        const uint64_t begin_ns = now_ns();
        const uint64_t before_bytes = device.ledger.view().used_bytes;
        device.ledger.set_budget(budget_bytes); // first: from here on nothing new is allocated beyond it
        const auto timeout = std::chrono::nanoseconds(std::min<uint64_t>(timeout_ns, 3600ULL * 1000000000ULL));
        device.gate.request(timeout);
        const LedgerView view = device.ledger.view();
        xlm_release release{};
        release.completed = view.used_bytes <= view.budget_bytes;
        release.budget_bytes = view.budget_bytes;
        release.used_bytes = view.used_bytes;
        release.device_used_bytes = device.inner.memory().used_bytes;
        release.released_bytes = before_bytes > view.used_bytes ? before_bytes - view.used_bytes : 0;
        release.release_ns = now_ns() - begin_ns;
        if (result) write_struct(result, release);
        if (release.completed || timeout_ns == 0) return XLM_OK;
        throw ApiError(XLM_ERR_TIMEOUT, "the release goes on at the next sub-layer border");
    });
}

xlm_status xlm_device_set_schedule(const xlm_schedule * schedule) {
    return at_boundary([&] {
        Core & device = opened_core();
        const auto source = read_struct(schedule, offsetof(xlm_schedule, experts)); // as first released
        auto taken = std::make_unique<Schedule>(read_schedule(source, device.registry.count()));
        {
            const std::lock_guard<std::mutex> lock(device.schedule_mutex);
            device.next_schedule = std::move(taken);
        }
        std::unique_lock<std::mutex> idle(device.exec_mutex, std::try_to_lock);
        if (idle) device.take_schedule(); // else the next graph takes it
        return XLM_OK;
    });
}

xlm_status xlm_device_settle(uint64_t max_bytes, uint32_t * more) {
    return at_boundary([&] {
        Core & device = opened_core();
        const std::lock_guard<std::mutex> running(device.exec_mutex);
        device.take_schedule();
        const bool left = device.settle(max_bytes);
        if (more) *more = left;
        if (device.inner.lost())
            throw ApiError(XLM_ERR_DEVICE_LOST, "the inner device is lost; everything runs on the CPU");
        return XLM_OK;
    });
}

xlm_status xlm_device_begin_step(uint32_t n_tokens) {
    return at_boundary([&] {
        opened_core().abort_step = false;
        announce_step(n_tokens);
        return XLM_OK;
    });
}

xlm_status xlm_device_abort_step(void) {
    return at_boundary([&] {
        opened_core().abort_step = true;
        core().gate.wake();
        return XLM_OK;
    });
}

xlm_status xlm_device_set_pace(double duty, uint64_t max_rest_ns) {
    return at_boundary([&] {
        if (!(duty > 0.0 && duty <= 1.0)) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "duty is not in (0, 1]");
        opened_core().rests.set(duty, max_rest_ns);
        core().gate.wake();
        return XLM_OK;
    });
}

xlm_status xlm_device_end_vision(void) {
    return at_boundary([&] {
        Core & device = opened_core();
        when_idle(device, [&] {
            if (!device.cache.vision_phase) return;
            device.leave_vision();
            device.bring_back();
        });
        return XLM_OK;
    });
}

xlm_status xlm_device_begin_vision(void) {
    return at_boundary([&] {
        Core & device = opened_core();
        const std::lock_guard<std::mutex> running(device.exec_mutex);
        device.take_schedule();
        const GateGuard guard(device.gate);
        device.begin_vision();
        return XLM_OK;
    });
}

xlm_status xlm_device_trim(void) {
    return at_boundary([&] {
        Core & device = opened_core();
        when_idle(device, [&] { device.cache.drop_all(); });
        return XLM_OK;
    });
}

xlm_status xlm_device_recover(void) {
    return at_boundary([&] {
        Core & device = opened_core();
        if (!device.inner.present()) throw ApiError(XLM_ERR_NO_DEVICE, "there is no inner device");
        bool well = false;
        when_idle(device, [&] {
            device.cache.drop_all(); // copies do not survive a fault
            well = device.inner.recover();
        });
        if (!well) throw ApiError(XLM_ERR_DEVICE_LOST, "the inner device is still lost");
        return XLM_OK;
    });
}

xlm_status xlm_device_experts(uint32_t index, xlm_expert_info * info, float * share, uint32_t n_share) {
    return at_boundary([&] {
        xlm_expert_info result{};
        if (!opened_core().registry.describe_experts(index, result, share, n_share))
            throw ApiError(XLM_ERR_INVALID_ARGUMENT, "no sub-layer " + std::to_string(index));
        write_struct(info, result);
        return XLM_OK;
    });
}

xlm_status xlm_device_trace(uint32_t capacity) {
    return at_boundary([&] {
        if (capacity > kMaxTraceEvents)
            throw ApiError(XLM_ERR_INVALID_ARGUMENT,
                           "a trace holds at most " + std::to_string(kMaxTraceEvents) + " events");
        opened_core().trace.start(capacity);
        return XLM_OK;
    });
}

xlm_status xlm_device_trace_read(xlm_trace_event * events, uint32_t n_events, uint32_t * n_read, uint64_t * n_lost) {
    return at_boundary([&] {
        if (!n_read || (!events && n_events > 0))
            throw ApiError(XLM_ERR_INVALID_ARGUMENT, "a required pointer is NULL");
        const size_t stride = n_events > 0 ? events[0].struct_size : sizeof(xlm_trace_event);
        if (stride < offsetof(xlm_trace_event, device_end_ns) + sizeof(uint64_t) || stride % alignof(xlm_trace_event))
            throw ApiError(XLM_ERR_INVALID_ARGUMENT, "struct_size is too small; set it to sizeof");
        std::vector<xlm_trace_event> taken(n_events);
        uint64_t lost = 0;
        const size_t count = opened_core().trace.take(taken.data(), n_events, lost);
        for (size_t i = 0; i < count; i++) {
            char * target = reinterpret_cast<char *>(events) + i * stride;
            std::memcpy(target, &taken[i], std::min(stride, sizeof taken[i]));
            reinterpret_cast<xlm_trace_event *>(target)->struct_size = static_cast<uint32_t>(stride);
        }
        *n_read = static_cast<uint32_t>(count);
        if (n_lost) *n_lost = lost;
        return XLM_OK;
    });
}

xlm_status xlm_device_memory(xlm_memory * memory) {
    return at_boundary([&] {
        Core & device = opened_core();
        const LedgerView view = device.ledger.view();
        const DeviceMemory counter = device.inner.memory();
        xlm_memory result{};
        result.budget_bytes = view.budget_bytes;
        result.used_bytes = view.used_bytes;
        result.resident_bytes = view.of(Purpose::resident) + view.of(Purpose::expert_slots);
        result.kv_bytes = view.of(Purpose::kv);
        result.ring_bytes = view.of(Purpose::ring) + view.of(Purpose::expert_window);
        result.expert_slot_bytes = view.of(Purpose::expert_slots);
        result.expert_window_bytes = view.of(Purpose::expert_window);
        result.scratch_bytes = view.of(Purpose::scratch);
        result.device_used_bytes = counter.used_bytes;
        result.device_total_bytes = counter.total_bytes;
        result.peak_used_bytes = view.peak_bytes;
        result.over_budget_events = device.stats.over_budget_events.get();
        write_struct(memory, result);
        return XLM_OK;
    });
}

xlm_status xlm_device_stats(xlm_stats * stats) {
    return at_boundary([&] {
        Core & device = opened_core();
        const Stats & from = device.stats;
        xlm_stats result{};
        result.device_lost = device.inner.lost();
        result.schedule_id = device.schedule_id.load();
        result.n_graphs = from.n_graphs.get();
        result.n_segments_device = from.n_segments_device.get();
        result.n_segments_cpu = from.n_segments_cpu.get();
        result.n_pieces_streamed = from.n_pieces_streamed.get();
        result.bytes_streamed = from.bytes_streamed.get();
        result.bytes_resident_uploaded = from.bytes_resident_uploaded.get();
        result.bytes_activations_up = from.bytes_activations_up.get();
        result.bytes_activations_down = from.bytes_activations_down.get();
        result.bytes_kv_up = from.bytes_kv_up.get();
        result.bytes_kv_written_back = from.bytes_kv_written_back.get();
        result.n_evictions = from.n_evictions.get();
        result.n_reclaims = from.n_reclaims.get();
        result.reclaim_ns_max = from.reclaim_ns_max.get();
        result.ns_graph = from.ns_graph.get();
        result.ns_wait_device = from.ns_wait_device.get();
        result.ns_cpu_compute = from.ns_cpu_compute.get();
        result.n_fallback_cpu = from.n_fallback_cpu.get();
        result.scratch_need_decode_bytes = from.scratch_need_decode_bytes.get();
        result.scratch_need_prefill_bytes = from.scratch_need_prefill_bytes.get();
        result.prefill_tokens_seen = from.prefill_tokens_seen.get();
        result.n_device_refusals = from.n_device_refusals.get();
        result.n_replays = from.n_replays.get();
        result.pageable_host_bytes = from.pageable_host_bytes.get();
        result.expert_steps = from.expert_steps.get();
        result.expert_hits = from.expert_hits.get();
        result.expert_misses = from.expert_misses.get();
        result.expert_cpu = from.expert_cpu.get();
        result.expert_bytes_uploaded = from.expert_bytes_uploaded.get();
        result.expert_bytes_saved = from.expert_bytes_saved.get();
        result.expert_passes = from.expert_passes.get();
        result.expert_whole = from.expert_whole.get();
        result.sublayer_ns_max = from.sublayer_ns_max.get();
        result.ns_paced = from.ns_paced.get();
        result.n_vision_graphs = from.n_vision_graphs.get();
        result.vision_scratch_need_bytes = from.vision_scratch_need_bytes.get();
        result.n_vision_attention_cpu = from.n_vision_attention_cpu.get();
        result.n_attention_tiles = from.n_attention_tiles.get();
        result.bytes_masks_up = from.bytes_masks_up.get();
        result.n_patch_tiles = from.n_patch_tiles.get();
        result.bytes_kv_streamed = from.bytes_kv_streamed.get();
        result.n_plans = from.n_plans.get();
        write_struct(stats, result);
        return XLM_OK;
    });
}

xlm_status xlm_device_reset_stats(void) {
    return at_boundary([&] {
        Core & device = opened_core();
        device.stats.each_event([](Counter & counter) { counter.reset(); });
        device.registry.reset_expert_counters();
        device.ledger.reset_peak();
        return XLM_OK;
    });
}
