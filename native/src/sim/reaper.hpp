// Gives pages back to the operating system behind the caller's back.
//
// A card frees memory without touching it; unmapping host pages costs about
// 0.17 ms a MiB, more than everything else in a reclaim. That cost belongs to
// the simulation, so it is paid on a thread of its own: the device counts the
// bytes as free at once. Pages go in small pieces, since a long munmap would
// hold up every other mapping call of the process.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>

#if !defined(_WIN32)
#include <sys/mman.h>

namespace xlm::sim {

class Reaper {
public:
    // Never destroyed: its thread may outlive static destruction.
    static Reaper & get() {
        static Reaper * reaper = new Reaper;
        return *reaper;
    }

    // Takes over the mapping; nobody may touch it any more. Never throws: at worst the caller pays.
    void take(void * base, size_t bytes) noexcept {
        try {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!started_) std::thread([this] { run(); }).detach();
            started_ = true;
            dead_.push_back({base, bytes});
        } catch (...) {
            munmap(base, bytes);
            return;
        }
        some_.notify_one();
    }

private:
    struct Mapping {
        void * base;
        size_t bytes;
    };
    static constexpr size_t kPieceBytes = size_t{1} << 20;

    Mapping next() {
        std::unique_lock<std::mutex> lock(mutex_);
        some_.wait(lock, [this] { return !dead_.empty(); });
        const Mapping mapping = dead_.front();
        dead_.pop_front();
        return mapping;
    }

    void run() {
        for (;;) {
            const Mapping mapping = next();
            for (size_t at = 0; at < mapping.bytes; at += kPieceBytes)
                madvise(static_cast<char *>(mapping.base) + at, std::min(kPieceBytes, mapping.bytes - at),
                        MADV_DONTNEED);
            munmap(mapping.base, mapping.bytes);
        }
    }

    std::mutex mutex_;
    std::condition_variable some_;
    std::deque<Mapping> dead_;
    bool started_ = false;
};

} // namespace xlm::sim
#endif
