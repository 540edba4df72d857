// Idle time within a step, so that a game's frames get their share of the machine while one is computed.
// What was computed since the last rest is to be `duty` of the time. Pure: the clock is the caller's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace xlm {

class Rests {
public:
    static constexpr uint64_t least_busy_ns = 500'000; // a shorter rest costs more in wake-ups than it gives

    // Any thread; also in force for a rest under way. `duty` over 0 and under 1, else there is no rest.
    void set(double duty, uint64_t max_rest_ns) {
        max_rest_ns_.store(max_rest_ns, std::memory_order_relaxed);
        duty_.store(duty > 0.0 && duty < 1.0 ? duty : 1.0, std::memory_order_relaxed);
    }
    bool slow() const { return duty_.load(std::memory_order_relaxed) < 1.0; }

    // The thread that computes: a step begins.
    void begin(uint64_t now_ns) {
        resumed_ns_ = now_ns;
        rested_ns_ = 0;
    }
    // Until when to rest at a border reached at `now_ns`; `now_ns`: not at all. All rests of a step are at most the
    // longest one that was set.
    uint64_t due_ns(uint64_t now_ns) const {
        const double duty = duty_.load(std::memory_order_relaxed);
        const uint64_t busy_ns = now_ns - resumed_ns_, most_ns = max_rest_ns_.load(std::memory_order_relaxed);
        if (duty >= 1.0 || busy_ns < least_busy_ns || rested_ns_ >= most_ns) return now_ns;
        const double rest_ns = static_cast<double>(busy_ns) * (1.0 / duty - 1.0);
        return now_ns + static_cast<uint64_t>(std::min(rest_ns, static_cast<double>(most_ns - rested_ns_)));
    }
    void rested(uint64_t from_ns, uint64_t to_ns) {
        rested_ns_ += to_ns - from_ns;
        resumed_ns_ = to_ns;
    }

private:
    std::atomic<double> duty_{1.0};
    std::atomic<uint64_t> max_rest_ns_{0};
    uint64_t resumed_ns_ = 0, rested_ns_ = 0;
};

} // namespace xlm
