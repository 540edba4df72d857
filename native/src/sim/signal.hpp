// One point in a stream's work that others can wait for.
#pragma once

#include "clock.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>

namespace xlm::sim {

// Exact mode: set by the worker that reaches it. Modelled mode: born reached,
// with the time on the virtual timeline. A signal is never re-armed, so that
// recording an event again cannot confuse those who wait for the earlier record.
class Signal {
public:
    static std::shared_ptr<Signal> at(ns_t time_ns) {
        auto signal = std::make_shared<Signal>();
        signal->time_ns_ = time_ns;
        signal->set_ = true;
        return signal;
    }
    void set() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            set_ = true;
        }
        reached_.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        reached_.wait(lock, [this] { return set_; });
    }
    ns_t time_ns() const { return time_ns_; }

private:
    std::mutex mutex_;
    std::condition_variable reached_;
    bool set_ = false;
    ns_t time_ns_ = 0;
};

using SignalPtr = std::shared_ptr<Signal>;

} // namespace xlm::sim
