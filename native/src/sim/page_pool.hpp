// The host pages that stand for device memory.
//
// A card takes and frees memory without touching it. Host pages cost: measured
// 0.25 ms a MiB when first touched and 0.17 ms a MiB when unmapped, more than
// everything else in a reclaim. That cost belongs to the simulation, so freed
// pages are kept for a while and given to the next allocation of the same size
// as they are, contents included, and those nobody wants go back to the
// operating system on a thread of their own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace xlm::sim {

// Thread-safe.
class PagePool {
public:
    using Clock = std::chrono::steady_clock;

    // The one the device uses; never destroyed, since its thread may outlive static destruction.
    static PagePool & get();

    explicit PagePool(Clock::duration keep_for) : keep_for_(keep_for) {}
    ~PagePool(); // unmaps what is kept
    PagePool(const PagePool &) = delete;
    PagePool & operator=(const PagePool &) = delete;

    // Kept pages of exactly that size, or fresh ones, which read as zero. nullptr: the system has none.
    void * take(size_t bytes);
    // Takes the pages over; nobody may touch them any more. Never throws: at worst the caller pays for the unmapping.
    void give(void * base, size_t bytes) noexcept;
    // Gives the oldest back until at most that many bytes are kept.
    void keep_at_most(uint64_t bytes) noexcept;
    uint64_t kept_bytes() const;

private:
    struct Pages {
        void * base;
        size_t bytes;
        Clock::time_point since;
    };

    void * find(size_t bytes);
    void run();
    bool next_to_unmap(Pages & pages); // false: the pool ends

    const Clock::duration keep_for_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Pages> kept_; // oldest first
    uint64_t kept_bytes_ = 0;
    bool stop_ = false;
    std::thread thread_; // from the first pages on
};

} // namespace xlm::sim
