// Steps of few tokens need little scratch. While they are all that runs, what the others' scratch would take is lent to
// copies; a step of many tokens takes it back by dropping them. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace xlm {

// How much of the budget is kept free of copies, step by step. Lending begins after a few steps of few tokens, so that
// conversations whose prompts and answers alternate do not copy the same weights again and again.
class Lending {
public:
    static constexpr uint64_t kBefore = 2; // steps

    // `tier_bytes`: what the step's tier keeps free at most.
    void note_step(uint64_t tier_bytes, uint64_t full_bytes) {
        n_ = tier_bytes < full_bytes ? std::min(n_ + 1, kBefore + 1) : 0;
    }
    // What is kept free now, by a tier that would keep `tier_bytes` free.
    uint64_t reserve_bytes(uint64_t tier_bytes, uint64_t full_bytes) const {
        return n_ <= kBefore ? full_bytes : std::min(tier_bytes, full_bytes);
    }

private:
    uint64_t n_ = 0; // steps of few tokens since the last of many
};

} // namespace xlm
