// How much may be queued for the link that nothing waits for yet. Estimated by a pace: no device tells what of its
// queue is done. Pure; all times are those of one clock.
#pragma once

#include "pace.hpp"

#include <algorithm>
#include <cstdint>

namespace xlm {

class Ahead {
public:
    static constexpr uint64_t kLeastSlice = 128 << 10; // of something larger: a copy costs more than its bytes

    // What is on its way and needed by nothing is to be there within `max_ns`.
    void begin(const Pace & pace, uint64_t max_ns, bool held) {
        pace_ = &pace;
        max_ns_ = max_ns;
        hold(held);
    }

    // From here on, or not any more: nothing but what grant() lets through. Something that nobody may wait behind is
    // about to use the link.
    void hold(bool held) {
        held_ = held;
        granted_ns_ = 0;
    }
    // Behind what is on its way the link has nothing else to do for so long. `hidden`: what is asked for meanwhile
    // waits as long anyway.
    void grant(uint64_t ns, bool hidden, uint64_t now_ns) {
        granted_ns_ = ns;
        hidden_until_ns_ = hidden ? std::max(free_at_ns_, now_ns) + ns : 0;
    }

    // Of something of which `left_bytes` are not queued.
    uint64_t bytes_now(uint64_t left_bytes, uint64_t now_ns) const {
        const uint64_t most = pace_->cost_within(room_ns(now_ns));
        if (left_bytes <= most) return left_bytes;
        return most / kLeastSlice * kLeastSlice;
    }
    uint64_t room_ns(uint64_t now_ns) const {
        const uint64_t from_ns = std::max({needed_until_ns_, hidden_until_ns_, now_ns});
        const uint64_t queued_ns = free_at_ns_ - std::min(free_at_ns_, from_ns);
        const uint64_t left_ns = max_ns_ - std::min(max_ns_, queued_ns);
        return held_ ? std::min(left_ns, granted_ns_) : left_ns;
    }

    void queued(uint64_t bytes, uint64_t now_ns) {
        const uint64_t takes_ns = pace_->predict_ns(bytes);
        free_at_ns_ = std::max(free_at_ns_, now_ns) + takes_ns;
        granted_ns_ -= std::min(granted_ns_, takes_ns);
    }
    // All that is queued is waited for: it counts no more.
    void needed() { needed_until_ns_ = free_at_ns_; }
    // What is waited for is there: earlier than the pace said, if it said later.
    void arrived(uint64_t now_ns) {
        if (needed_until_ns_ <= now_ns) return;
        free_at_ns_ -= needed_until_ns_ - now_ns;
        needed_until_ns_ = now_ns;
    }
    uint64_t free_at_ns() const { return free_at_ns_; } // when all that was queued is there

private:
    const Pace * pace_ = nullptr;
    uint64_t max_ns_ = 0, granted_ns_ = 0, free_at_ns_ = 0, needed_until_ns_ = 0, hidden_until_ns_ = 0;
    bool held_ = false;
};

} // namespace xlm
