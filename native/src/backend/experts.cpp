#include "experts.hpp"

#include <algorithm>
#include <cmath>
#include <deque>

namespace xlm {

namespace {

// A newcomer must be that much better before an upload of its own is spent on it.
constexpr double kBehindMargin = 1.25;

// Slots that the step does not read: empty ones first, then by what their experts are worth.
class Victims {
public:
    Victims(const SlotMap & slots, const std::vector<double> & scores, const std::vector<uint32_t> & pairs) {
        std::vector<std::pair<double, uint32_t>> order;
        for (uint32_t slot = 0; slot < slots.n_slots(); slot++) {
            const int32_t expert = slots.expert_in(slot);
            if (expert < 0)
                order.emplace_back(-1.0, slot);
            else if (pairs[static_cast<size_t>(expert)] == 0)
                order.emplace_back(scores[static_cast<size_t>(expert)], slot);
        }
        std::stable_sort(order.begin(), order.end());
        order_.assign(order.begin(), order.end());
    }

    bool any() const { return !order_.empty(); }
    double worth() const { return order_.front().first; } // negative: empty
    uint32_t take() {
        const uint32_t slot = order_.front().second;
        order_.pop_front();
        return slot;
    }

private:
    std::deque<std::pair<double, uint32_t>> order_;
};

// Of those from `first` on. `alone`: nothing else of the layer is on the device.
uint64_t cpu_time_ns(const std::vector<uint32_t> & pairs, size_t first, const xlm_expert_policy & rates, bool alone) {
    uint64_t sum_ns = first < pairs.size() ? rates.cpu_fixed_ns : 0;
    if (first < pairs.size() && (first > 0 || !alone)) sum_ns += rates.cpu_part_ns;
    for (size_t i = first; i < pairs.size(); i++)
        sum_ns += rates.cpu_ns + (pairs[i] - 1) * rates.cpu_token_ns;
    return sum_ns;
}

void sort_by_worth(std::vector<uint32_t> & experts, const std::vector<double> & scores) {
    std::stable_sort(experts.begin(), experts.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
}

class Decider {
public:
    Decider(const SlotMap & slots, const std::vector<double> & scores, const ExpertDemand & demand,
            const xlm_expert_policy & rates)
        : slots_(slots), scores_(scores), demand_(demand), rates_(rates), victims_(slots, scores, demand.pairs) {}

    ExpertDecision run() {
        sort_out();
        split_missing();
        result_.compact =
            result_.in_slots.size() + uploads_.size() <= slots_.n_slots() && slots_.n_slots() >= demand_.n_used;
        for (uint32_t expert : uploads_)
            place(expert);
        queue_behind();
        std::sort(result_.in_slots.begin(), result_.in_slots.end());
        std::sort(result_.in_window.begin(), result_.in_window.end());
        std::sort(result_.on_cpu.begin(), result_.on_cpu.end());
        return std::move(result_);
    }

private:
    void sort_out() {
        for (uint32_t expert = 0; expert < demand_.pairs.size(); expert++) {
            if (demand_.pairs[expert] == 0) continue;
            (slots_.slot_of(expert) >= 0 ? result_.in_slots : missing_).push_back(expert);
        }
        result_.n_hits = static_cast<uint32_t>(result_.in_slots.size());
        result_.n_misses = static_cast<uint32_t>(missing_.size());
        sort_by_worth(missing_, scores_);
    }

    void split_missing() {
        const bool alone = result_.in_slots.empty();
        std::vector<uint32_t> pairs;
        for (uint32_t expert : missing_)
            pairs.push_back(demand_.pairs[expert]);
        const auto n = static_cast<std::ptrdiff_t>(n_to_upload(pairs, rates_, demand_.n_cpu_pairs_max, alone));
        uploads_.assign(missing_.begin(), missing_.begin() + n);
        result_.on_cpu.assign(missing_.begin() + n, missing_.end());
    }

    // In a step that fits the slots every newcomer gets one; else only what is worth more than what lies there.
    void place(uint32_t expert) {
        if (!victims_.any() || (!result_.compact && victims_.worth() >= scores_[expert])) {
            result_.in_window.push_back(expert);
            return;
        }
        result_.loads.push_back({victims_.take(), expert});
        result_.in_slots.push_back(expert);
    }

    // A compact step needs slots that are not being written to stand in for what the CPU computes.
    void queue_behind() {
        const size_t spare = slots_.n_slots() > demand_.n_used ? slots_.n_slots() - demand_.n_used : 0;
        const size_t limit = std::min<size_t>(demand_.n_behind_max, result_.compact ? spare : SIZE_MAX);
        for (uint32_t expert : result_.on_cpu) { // still in order of worth
            if (result_.behind.size() >= limit || !victims_.any()) return;
            if (victims_.worth() >= 0 && victims_.worth() * kBehindMargin >= scores_[expert]) return;
            result_.behind.push_back({victims_.take(), expert});
        }
    }

    const SlotMap & slots_;
    const std::vector<double> & scores_;
    const ExpertDemand & demand_;
    const xlm_expert_policy & rates_;
    Victims victims_;
    std::vector<uint32_t> missing_, uploads_;
    ExpertDecision result_;
};

} // namespace

void ExpertScores::reset(uint32_t n_experts) {
    values_.assign(n_experts, 0);
    weight_ = 0;
}

void ExpertScores::note(const std::vector<uint32_t> & pairs, uint32_t n_tokens) {
    if (n_tokens == 0) return;
    const double keep = std::exp2(-static_cast<double>(n_tokens) / kHalfLifeTokens);
    for (size_t e = 0; e < values_.size(); e++)
        values_[e] = values_[e] * keep + (1 - keep) * pairs[e] / n_tokens;
    weight_ = weight_ * keep + (1 - keep);
}

void SlotMap::reset(uint32_t n_experts, uint32_t n_slots) {
    slot_of_.assign(n_experts, -1);
    expert_in_.assign(n_slots, -1);
}

void SlotMap::clear(uint32_t slot) {
    if (expert_in_[slot] >= 0) slot_of_[static_cast<size_t>(expert_in_[slot])] = -1;
    expert_in_[slot] = -1;
}

void SlotMap::assign(uint32_t slot, uint32_t expert) {
    clear(slot);
    expert_in_[slot] = static_cast<int32_t>(expert);
    slot_of_[expert] = static_cast<int32_t>(slot);
}

uint32_t SlotMap::n_filled() const {
    return static_cast<uint32_t>(
        std::count_if(expert_in_.begin(), expert_in_.end(), [](int32_t expert) { return expert >= 0; }));
}

size_t n_to_upload(const std::vector<uint32_t> & pairs, const xlm_expert_policy & rates, uint32_t n_cpu_pairs_max,
                   bool alone) {
    size_t best = pairs.size();
    if (rates.cpu_ns == 0 || n_cpu_pairs_max == 0) return best;
    uint64_t best_ns = rates.upload_ns * best;
    uint64_t n_cpu_pairs = 0;
    for (size_t n = pairs.size(); n-- > 0;) {
        n_cpu_pairs += pairs[n];
        if (n_cpu_pairs > n_cpu_pairs_max) break;
        const uint64_t ns = std::max(rates.upload_ns * n, cpu_time_ns(pairs, n, rates, alone));
        if (ns < best_ns) best = n, best_ns = ns;
    }
    return best;
}

ExpertDecision decide_experts(const SlotMap & slots, const std::vector<double> & scores, const ExpertDemand & demand,
                              const xlm_expert_policy & rates) {
    return Decider(slots, scores, demand, rates).run();
}

std::vector<SlotLoad> fill_empty(const SlotMap & slots, const std::vector<double> & scores, size_t limit) {
    std::vector<uint32_t> wanted;
    for (uint32_t expert = 0; expert < scores.size(); expert++)
        if (scores[expert] > 0 && slots.slot_of(expert) < 0) wanted.push_back(expert);
    sort_by_worth(wanted, scores);
    std::vector<SlotLoad> loads;
    for (uint32_t slot = 0; slot < slots.n_slots() && loads.size() < std::min(limit, wanted.size()); slot++)
        if (slots.expert_in(slot) < 0) loads.push_back({slot, wanted[loads.size()]});
    return loads;
}

} // namespace xlm
