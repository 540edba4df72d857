// XLM0 through its C control API: life, schedules, budgets. One at a time in a process.
#pragma once

#include "options.hpp"

#include "xlm/xlm_device.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace kit {

class XlmError : public std::runtime_error {
public:
    XlmError(const std::string & call, xlm_status status);
};

// A schedule with two tiers: steps of up to kDecodeTokens tokens, and longer ones.
struct Plan {
    static constexpr uint32_t kDecodeTokens = 8;
    std::string name;
    std::vector<uint8_t> decode, prefill; // xlm_placement by sub-layer
    std::vector<uint32_t> priority;       // the last is evicted first
    uint64_t ring_bytes = 0;
    uint64_t reserve_bytes = 0;
};

class Xlm {
public:
    // Opens XLM0 over the inner device with that budget. Throws XlmError.
    Xlm(const Options & options, uint64_t budget_bytes);
    ~Xlm() { xlm_device_close(); }
    Xlm(const Xlm &) = delete;
    Xlm & operator=(const Xlm &) = delete;

    std::vector<xlm_sublayer_info> sublayers() const;
    // Device bytes of everything that can be resident, weights and KV.
    uint64_t resident_bytes() const;

    Plan all(xlm_placement placement) const;
    // Each sub-layer at random; `with_cpu` or device placements only.
    Plan mixed(uint64_t seed, bool with_cpu) const;
    // Pins attention, then FFN and experts, then the output while they fit; the rest as told per tier.
    Plan greedy(uint64_t budget_bytes, xlm_placement decode_rest, xlm_placement prefill_rest) const;

    // Ring, reserve and priority anew: the reserve is a guess until a step told how much scratch it needs.
    void refine(Plan & plan) const;
    void apply(const Plan & plan);
    // Uploads until nothing is left to upload. Call from the decoding thread.
    void settle_all();
    void begin_step(uint32_t n_tokens);
    // May be called from any thread, also in mid-graph. timeout 0 does not wait.
    xlm_release set_budget(uint64_t bytes, uint64_t timeout_ns);
    xlm_memory memory() const;
    xlm_stats stats() const;
    void reset_stats();

private:
    uint64_t schedule_id_ = 0;
};

} // namespace kit
