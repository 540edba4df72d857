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
    // `service` brings the device memory down to the budget; called with the gate held. `met` tells whether it is
    // within the budget of this moment, so that what was asked during a service needs none of its own.
    explicit Gate(
        std::function<void()> service, std::function<bool()> met = [] { return false; })
        : service_(std::move(service)), met_(std::move(met)) {}

    void acquire() {
        std::unique_lock<std::mutex> lock(mutex_);
        n_waiting_++;
        changed_.wait(lock, [&] { return !held_; });
        n_waiting_--;
        held_ = true;
        overtaken_ = false;
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

    // What was asked so far; what is asked meanwhile may have to wait for the next border.
    void serve_requests() {
        std::unique_lock<std::mutex> lock(mutex_);
        if (requested_ != served_) serve(lock);
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
        if (!held_ && (n_waiting_ == 0 || !overtaken_)) { // once before who waits: a storm must not keep it out
            overtaken_ = n_waiting_ > 0;
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
        served_ = met_() ? requested_ : upto;
        changed_.notify_all();
    }

    std::function<void()> service_;
    std::function<bool()> met_; // called under the mutex
    std::mutex mutex_;
    std::condition_variable changed_;
    bool held_ = false, overtaken_ = false; // by a request, whoever waits in acquire()
    int n_waiting_ = 0;
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
