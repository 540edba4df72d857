// The schedule in force: which tier serves how many tokens, and how much of the
// budget is kept for the ring and the scratch. Placements live in the sub-layers.
#pragma once

#include "xlm/xlm_device.h"

#include <cstdint>
#include <vector>

namespace xlm {

struct Schedule {
    uint64_t id = 0;
    std::vector<uint32_t> tier_max_tokens;       // ascending
    std::vector<std::vector<uint8_t>> placement; // [tier][sub-layer index]
    std::vector<uint32_t> priority;              // sub-layer indices, the last is evicted first
    uint64_t ring_bytes = 0, reserve_bytes = 0;
    std::vector<xlm_expert_policy> experts; // by sub-layer index; empty: no slots
    uint64_t expert_window_bytes = 0;       // 0: a share of the ring's

    // The last tier serves whatever is above the others.
    uint32_t tier_for(uint32_t n_tokens) const {
        for (uint32_t t = 0; t + 1 < tier_max_tokens.size(); t++)
            if (n_tokens <= tier_max_tokens[t]) return t;
        return tier_max_tokens.empty() ? 0 : static_cast<uint32_t>(tier_max_tokens.size() - 1);
    }
};

// Checks and copies. Throws ApiError with what is wrong.
Schedule read_schedule(const xlm_schedule & source, uint32_t n_sublayers);

} // namespace xlm
