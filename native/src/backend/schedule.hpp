// The schedule in force: which tier serves how many tokens, and how much of the
// budget is kept for the ring and the scratch. Placements live in the sub-layers.
#pragma once

#include "xlm/xlm_device.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace xlm {

struct Schedule {
    uint64_t id = 0;
    std::vector<uint32_t> tier_max_tokens;       // ascending
    std::vector<uint32_t> vision_max_patches;    // ascending; those tiers stand behind the others in `placement`
    std::vector<std::vector<uint8_t>> placement; // [tier][sub-layer index]
    std::vector<uint64_t> tier_reserve_bytes;    // [tier] kept free in its steps; 0: reserve_bytes
    std::vector<uint32_t> priority;              // sub-layer indices, the last is evicted first
    uint64_t ring_bytes = 0, reserve_bytes = 0, vision_ring_bytes = 0;
    std::vector<xlm_expert_policy> experts; // by sub-layer index; empty: no slots
    uint64_t expert_window_bytes = 0;       // 0: a share of the ring's

    // The last tier serves whatever is above the others.
    uint32_t tier_for(uint32_t n_tokens) const { return serving(tier_max_tokens, n_tokens); }

    uint64_t reserve_of(uint32_t tier) const {
        const uint64_t own = tier < tier_reserve_bytes.size() ? tier_reserve_bytes[tier] : 0;
        return own > 0 ? std::min(own, reserve_bytes) : reserve_bytes;
    }
    // Of the reserve, for the ring and the window of experts beside it: one that is as large is the ring's memory.
    uint64_t streaming_bytes() const {
        const bool beside = !experts.empty() && expert_window_bytes < ring_bytes;
        return ring_bytes + (beside ? expert_window_bytes : 0);
    }
    // Some tiers lend what others need for their scratch.
    bool lends() const {
        return std::any_of(tier_reserve_bytes.begin(), tier_reserve_bytes.end(),
                           [this](uint64_t own) { return own > 0 && own < reserve_bytes; });
    }

    // Beyond all tiers, where nothing is placed, if the schedule knows no vision phase.
    uint32_t vision_tier_for(uint32_t n_patches) const {
        return static_cast<uint32_t>(tier_max_tokens.size()) + serving(vision_max_patches, n_patches);
    }

private:
    static uint32_t serving(const std::vector<uint32_t> & limits, uint32_t n) {
        for (uint32_t t = 0; t + 1 < limits.size(); t++)
            if (n <= limits[t]) return t;
        return limits.empty() ? 0 : static_cast<uint32_t>(limits.size() - 1);
    }
};

// Checks and copies. Throws ApiError with what is wrong.
Schedule read_schedule(const xlm_schedule & source, uint32_t n_sublayers);

} // namespace xlm
