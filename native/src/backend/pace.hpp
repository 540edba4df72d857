// How long queued work will take, learned from how long work took. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace xlm {

// Nanoseconds per unit of cost. Costs are bytes read by the work (weights, state) or moved by a copy.
class Pace {
public:
    explicit Pace(double first_ns_per_cost = 0) : ns_per_cost_(first_ns_per_cost) {}

    bool known() const { return learned_; }
    // 0 while nothing is known.
    uint64_t predict_ns(uint64_t cost) const { return static_cast<uint64_t>(static_cast<double>(cost) * ns_per_cost_); }

    // How much cost fits into a time. UINT64_MAX while nothing is known.
    uint64_t cost_within(uint64_t ns) const {
        if (ns_per_cost_ <= 0) return UINT64_MAX;
        return static_cast<uint64_t>(std::min(1e18, static_cast<double>(ns) / ns_per_cost_));
    }

    void learn(uint64_t cost, uint64_t ns) {
        if (cost == 0 || ns == 0) return;
        const double seen = static_cast<double>(ns) / static_cast<double>(cost);
        ns_per_cost_ = learned_ ? ns_per_cost_ + (seen - ns_per_cost_) / 8 : seen;
        learned_ = true;
    }

private:
    double ns_per_cost_;
    bool learned_ = false;
};

// How long something lasts at least, from what it lasted: falls at once, rises slowly.
class Lull {
public:
    uint64_t ns() const { return ns_; } // 0: not known
    void learn(uint64_t ns) {
        ns_ = !known_ || ns < ns_ ? ns : ns_ + (ns - ns_) / 8;
        known_ = true;
    }

private:
    uint64_t ns_ = 0;
    bool known_ = false;
};

// One pace for steps of about the same number of tokens: a step of one is bound by memory, one of many by arithmetic.
class StepPaces {
public:
    Pace & of(uint32_t n_tokens) {
        size_t bits = 0;
        for (; n_tokens > 1 && bits + 1 < by_size_.size(); n_tokens /= 2)
            bits++;
        return by_size_[bits];
    }

private:
    std::array<Pace, 17> by_size_;
};

} // namespace xlm
