// Wakes the I/O thread out of its poll.
#pragma once

#include <atomic>
#include <cstdint>

namespace xlm::client {

class Waker {
public:
#ifdef _WIN32
    using Handle = std::uintptr_t; // SOCKET
#else
    using Handle = int;
#endif

    Waker(); // throws Failed where the system has no descriptor left
    ~Waker();
    Waker(const Waker &) = delete;
    Waker & operator=(const Waker &) = delete;

    /// Any thread. Never blocks, never allocates: one small write, or none where the thread is awake already.
    void wake() noexcept {
        if (!pending_.exchange(true, std::memory_order_acq_rel)) write();
    }

    /// The I/O thread, before it looks at the queues: whoever wakes after this is not missed.
    void clear() noexcept;

    Handle handle() const noexcept {
        return reader_;
    }

private:
    void write() noexcept;

    std::atomic<bool> pending_{false};
    Handle reader_, writer_;
};

} // namespace xlm::client
