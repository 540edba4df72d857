// The one book of device memory: nothing is allocated on the inner device that
// was not written here first, and nothing is written beyond the budget. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

namespace xlm {

enum class Purpose : uint8_t { resident, kv, ring, scratch, expert_slots, expert_window };
constexpr size_t kPurposes = 6;

struct LedgerView {
    uint64_t n_budgets = 0; // set so far
    uint64_t budget_bytes = 0, used_bytes = 0, peak_bytes = 0;
    std::array<uint64_t, kPurposes> by_purpose{};
    uint64_t of(Purpose purpose) const { return by_purpose[static_cast<size_t>(purpose)]; }
};

// Thread-safe. A mutex rather than atomics: a reservation made against an old
// budget must not land after the new budget was published.
class Ledger {
public:
    bool try_reserve(Purpose purpose, uint64_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (bytes > view_.budget_bytes || view_.used_bytes > view_.budget_bytes - bytes) return false;
        view_.used_bytes += bytes;
        view_.by_purpose[static_cast<size_t>(purpose)] += bytes;
        if (view_.used_bytes > view_.peak_bytes) view_.peak_bytes = view_.used_bytes;
        return true;
    }

    void release(Purpose purpose, uint64_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        view_.used_bytes -= bytes;
        view_.by_purpose[static_cast<size_t>(purpose)] -= bytes;
    }

    void set_budget(uint64_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        view_.budget_bytes = bytes;
        view_.n_budgets++;
    }

    void reset_peak() {
        const std::lock_guard<std::mutex> lock(mutex_);
        view_.peak_bytes = view_.used_bytes;
    }

    LedgerView view() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return view_;
    }

    uint64_t budget_bytes() const { return view().budget_bytes; }
    bool over_budget() const {
        const LedgerView now = view();
        return now.used_bytes > now.budget_bytes;
    }

private:
    mutable std::mutex mutex_;
    LedgerView view_;
};

} // namespace xlm
