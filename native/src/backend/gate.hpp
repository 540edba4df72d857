// Who may touch the device. One holder at a time; a reclaim asked for while
// somebody holds it is served by the holder at its next border, or by the asking
// thread as soon as nobody holds it. Pure.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace xlm {

class Gate {
public:
    // `service` brings the device memory down to the budget; called with the gate held.
    explicit Gate(std::function<void()> service) : service_(std::move(service)) {}

    void acquire() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !held_; });
        held_ = true;
    }

    // Serves what was asked meanwhile, so that no request is left between two holders.
    void release() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (requested_ != served_)
            serve(lock);
        held_ = false;
        lock.unlock();
        changed_.notify_all();
    }

    // For the holder, at borders.
    bool requested() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return requested_ != served_;
    }

    void serve_requests() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (requested_ != served_)
            serve(lock);
    }

    // For who computes: sleeps, until a reclaim is asked for or `over` says so. Whoever changes what `over` looks at
    // calls wake().
    template <typename Over>
    void rest(std::chrono::nanoseconds time, Over over) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, time, [&] { return requested_ != served_ || over(); });
    }
    void wake() {
        { const std::lock_guard<std::mutex> lock(mutex_); } // who checks its condition now sleeps before the call
        changed_.notify_all();
    }

    // From any thread that does not hold the gate. True when served within the timeout;
    // otherwise it is still going to be.
    bool request(std::chrono::nanoseconds timeout) {
        std::unique_lock<std::mutex> lock(mutex_);
        const uint64_t mine = ++requested_;
        if (!held_) {
            held_ = true;
            while (requested_ != served_)
                serve(lock);
            held_ = false;
            lock.unlock();
            changed_.notify_all();
            return true;
        }
        changed_.notify_all(); // the holder may be resting
        return changed_.wait_for(lock, timeout, [&] { return served_ >= mine; });
    }

private:
    void serve(std::unique_lock<std::mutex> & lock) {
        const uint64_t upto = requested_;
        lock.unlock();
        service_();
        lock.lock();
        served_ = upto;
        changed_.notify_all();
    }

    std::function<void()> service_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool held_ = false;
    uint64_t requested_ = 0, served_ = 0;
};

class GateGuard {
public:
    explicit GateGuard(Gate & gate) : gate_(gate) { gate_.acquire(); }
    ~GateGuard() { gate_.release(); }
    GateGuard(const GateGuard &) = delete;
    GateGuard & operator=(const GateGuard &) = delete;

private:
    Gate & gate_;
};

// Opens the gate while the holder computes on the CPU: a reclaim need not wait for it.
class GateWindow {
public:
    explicit GateWindow(Gate & gate) : gate_(gate) { gate_.release(); }
    ~GateWindow() { gate_.acquire(); }
    GateWindow(const GateWindow &) = delete;
    GateWindow & operator=(const GateWindow &) = delete;

private:
    Gate & gate_;
};

} // namespace xlm
