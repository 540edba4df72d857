// Counters for xlm_device_stats(). Relaxed atomics: each is exact, a set of them is not a snapshot.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace xlm {

class Counter {
public:
    void operator+=(uint64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
    void operator++(int) { *this += 1; }
    void raise_to(uint64_t value) {
        uint64_t seen = get();
        while (seen < value && !value_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
        }
    }
    void reset() { value_.store(0, std::memory_order_relaxed); }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<uint64_t> value_{0};
};

struct Stats {
    Counter n_graphs, n_segments_device, n_segments_cpu;
    Counter n_pieces_streamed, bytes_streamed, bytes_resident_uploaded;
    Counter bytes_activations_up, bytes_activations_down, bytes_kv_up, bytes_kv_written_back;
    Counter n_evictions, n_reclaims, reclaim_ns_max, sublayer_ns_max;
    Counter ns_graph, ns_wait_device, ns_cpu_compute, ns_paced;
    Counter n_fallback_cpu, n_replays, n_device_refusals, over_budget_events;
    Counter expert_steps, expert_hits, expert_misses, expert_cpu, expert_bytes_uploaded, expert_bytes_saved;
    Counter expert_passes, expert_whole;
    Counter scratch_need_decode_bytes, scratch_need_prefill_bytes, prefill_tokens_seen;
    Counter n_vision_graphs, vision_scratch_need_bytes, n_vision_attention_cpu, n_attention_tiles, bytes_masks_up,
        n_patch_tiles;
    Counter bytes_kv_streamed, n_plans;
    Counter pageable_host_bytes; // not reset: memory, not events

    template <typename Visit>
    void each_event(Visit visit) {
        for (Counter * counter : {&n_graphs,
                                  &n_segments_device,
                                  &n_segments_cpu,
                                  &n_pieces_streamed,
                                  &bytes_streamed,
                                  &bytes_resident_uploaded,
                                  &bytes_activations_up,
                                  &bytes_activations_down,
                                  &bytes_kv_up,
                                  &bytes_kv_written_back,
                                  &bytes_kv_streamed,
                                  &n_plans,
                                  &n_evictions,
                                  &n_reclaims,
                                  &reclaim_ns_max,
                                  &sublayer_ns_max,
                                  &ns_graph,
                                  &ns_wait_device,
                                  &ns_cpu_compute,
                                  &ns_paced,
                                  &n_fallback_cpu,
                                  &n_replays,
                                  &n_device_refusals,
                                  &n_vision_graphs,
                                  &n_vision_attention_cpu,
                                  &n_attention_tiles,
                                  &n_patch_tiles,
                                  &bytes_masks_up,
                                  &over_budget_events,
                                  &expert_steps,
                                  &expert_hits,
                                  &expert_misses,
                                  &expert_cpu,
                                  &expert_bytes_uploaded,
                                  &expert_bytes_saved,
                                  &expert_passes,
                                  &expert_whole,
                                  &scratch_need_decode_bytes,
                                  &scratch_need_prefill_bytes,
                                  &prefill_tokens_seen})
            visit(*counter);
    }
};

inline uint64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Adds the time until it goes out of scope.
class Timed {
public:
    explicit Timed(Counter & counter) : counter_(counter), begin_ns_(now_ns()) {}
    ~Timed() { counter_ += now_ns() - begin_ns_; }
    Timed(const Timed &) = delete;
    Timed & operator=(const Timed &) = delete;

private:
    Counter & counter_;
    uint64_t begin_ns_;
};

} // namespace xlm
