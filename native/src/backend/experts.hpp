// Decisions about single experts: which are worth a place on the device, and what becomes of those that a
// step needs and that have none. Pure: no device, no ggml.
#pragma once

#include "xlm/xlm_device.h"

#include <cstdint>
#include <mutex>
#include <vector>

namespace xlm {

// How often each expert is used, the past counting less: decayed frequency. Decays by tokens, not by steps,
// so that a prefill weighs as much as the same tokens one by one.
class ExpertScores {
public:
    static constexpr double kHalfLifeTokens = 256;

    void reset(uint32_t n_experts);
    // A step of n_tokens used expert e for pairs[e] of them.
    void note(const std::vector<uint32_t> & pairs, uint32_t n_tokens);
    const std::vector<double> & values() const { return values_; }
    bool seen() const { return weight_ > 0; }
    // Part of the tokens that use expert e; 0 before the first step.
    double share(uint32_t expert) const { return weight_ > 0 ? values_[expert] / weight_ : 0; }

private:
    std::vector<double> values_;
    double weight_ = 0; // what an expert that every token used would have
};

// Which expert lies in which slot.
class SlotMap {
public:
    void reset(uint32_t n_experts, uint32_t n_slots);
    // The slot's former expert has none from here on.
    void assign(uint32_t slot, uint32_t expert);
    void clear(uint32_t slot);
    int32_t slot_of(uint32_t expert) const { return slot_of_[expert]; } // -1: none
    int32_t expert_in(uint32_t slot) const { return expert_in_[slot]; } // -1: empty
    uint32_t n_slots() const { return static_cast<uint32_t>(expert_in_.size()); }
    uint32_t n_filled() const;

private:
    std::vector<int32_t> slot_of_, expert_in_;
};

struct SlotLoad {
    uint32_t slot = 0, expert = 0;
    bool operator==(const SlotLoad & other) const { return slot == other.slot && expert == other.expert; }
};

struct ExpertDemand {
    std::vector<uint32_t> pairs;  // by expert: how many (token, choice) pairs of the step want it
    uint32_t n_used = 0;          // experts of one token
    uint32_t n_cpu_pairs_max = 0; // pairs the CPU may take; 0: none
    uint32_t n_behind_max = 0;    // uploads for later steps that may be queued behind this one
};

// What becomes of the experts of a step. All lists are in ascending order of experts.
struct ExpertDecision {
    std::vector<uint32_t> in_slots;  // used, and in a slot once `loads` are done
    std::vector<uint32_t> in_window; // used, streamed
    std::vector<uint32_t> on_cpu;    // used, computed there
    std::vector<SlotLoad> loads;     // before the step's work
    std::vector<SlotLoad> behind;    // beside it, for later steps: slots the step does not read
    uint32_t n_hits = 0, n_misses = 0;
    bool compact = false; // nothing goes through the window, and a token's choices fit the slots
};

ExpertDecision decide_experts(const SlotMap & slots, const std::vector<double> & scores, const ExpertDemand & demand,
                              const xlm_expert_policy & rates);

// How many of the missing experts to upload (the first n of `pairs`, their pairs by expert), the rest being computed
// on the CPU meanwhile: whichever way the slower of the two is done first. Ties go to the upload, which lasts.
// `alone`: no other expert of the step is on the device.
size_t n_to_upload(const std::vector<uint32_t> & missing_pairs, const xlm_expert_policy & rates,
                   uint32_t n_cpu_pairs_max, bool alone);

// Best empty slots first, for filling before anybody asks: at most `limit`, only experts ever used.
std::vector<SlotLoad> fill_empty(const SlotMap & slots, const std::vector<double> & scores, size_t limit);

} // namespace xlm
