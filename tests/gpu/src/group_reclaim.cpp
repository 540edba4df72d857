// How long a game waits for its memory: from the request to the release, while another thread generates.
#include "groups.hpp"

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace kit {

namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kWaitNs = 60'000'000'000;
// Drivers hand out pages of 2 MiB: the last one of each allocation may be shared.
constexpr uint64_t kCounterSlack = 8 * kMiB;
constexpr double kSmallest = 0.1; // of the full budget is released at least

struct Samples {
    std::vector<double> request_us, native_us; // at the caller, as the device measured it
    uint64_t released_bytes = 0, incomplete = 0, counter_short = 0, not_allocatable = 0, tried_allocations = 0;
    std::string failure;
};

// Waits until the decoding thread has grown to the full budget again, then takes a random part of it away.
class Reclaimer {
public:
    Reclaimer(Xlm & xlm, const InnerDevice & device, uint64_t full_bytes, size_t cycles)
        : xlm_(xlm), device_(device), full_bytes_(full_bytes), cycles_(cycles), thread_([this] { loop(); }) {}
    ~Reclaimer() { stop(); }

    // From the decoding thread after each step.
    void step_done(bool grown, uint64_t step_ns) {
        const std::lock_guard<std::mutex> lock(mutex_);
        step_ns_ = step_ns;
        grown_ = grown;
        if (grown) wake_.notify_one();
    }
    bool finished() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return finished_;
    }
    Samples stop() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            wake_.notify_one();
        }
        if (thread_.joinable()) thread_.join();
        return samples_;
    }

private:
    void loop() {
        for (size_t cycle = 0; cycle < cycles_ && wait_until_grown(); cycle++) {
            try {
                reclaim(cycle);
            } catch (const std::exception & error) {
                samples_.failure = error.what();
                break;
            }
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        finished_ = true;
    }

    bool wait_until_grown() {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return grown_ || stopping_; });
        grown_ = false;
        const auto pause = std::chrono::nanoseconds(step_ns_ ? random_() % step_ns_ : 0);
        if (stopping_) return false;
        lock.unlock();
        std::this_thread::sleep_for(pause); // any moment of a step is as likely as another
        return true;
    }

    void reclaim(size_t cycle) {
        const double keep = std::uniform_real_distribution<double>(0.0, 1.0 - kSmallest)(random_);
        const FreeMemory before = device_.memory();
        const uint64_t begin = now_ns();
        const xlm_release release = xlm_.set_budget(static_cast<uint64_t>(keep * full_bytes_), kWaitNs);
        samples_.request_us.push_back(static_cast<double>(now_ns() - begin) / 1e3);
        samples_.native_us.push_back(static_cast<double>(release.release_ns) / 1e3);
        samples_.incomplete += release.completed != 1;
        samples_.released_bytes += release.released_bytes;
        const FreeMemory after = device_.memory();
        samples_.counter_short += after.free_bytes + kCounterSlack < before.free_bytes + release.released_bytes;
        if (cycle % 8 == 0) try_allocation(release.released_bytes);
        xlm_.set_budget(full_bytes_, 0);
    }

    // A counter may lie; memory that can be allocated was really freed.
    void try_allocation(uint64_t bytes) {
        samples_.tried_allocations++;
        samples_.not_allocatable += bytes > kCounterSlack && !device_.can_allocate(bytes - kCounterSlack);
    }

    Xlm & xlm_;
    const InnerDevice & device_;
    uint64_t full_bytes_;
    size_t cycles_;
    std::mt19937_64 random_{5};
    Samples samples_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    bool grown_ = false, stopping_ = false, finished_ = false;
    uint64_t step_ns_ = 0;
    std::thread thread_; // last: it uses all of the above
};

class ReclaimCheck {
public:
    ReclaimCheck(Context & c, const InnerDevice & device, Xlm & xlm) : c_(c), device_(device), xlm_(xlm) {
        const ModelSpec spec = large_model(c.options.quick);
        shape_.threads = c.options.threads;
        shape_.n_ubatch = c.options.quick ? 64 : 512;
        shape_.n_ctx = 4 * shape_.n_ubatch;
        session_ = Session::on_xlm(make_model(spec, c.options.models), shape_, xlm_);
        xlm_.set_budget(xlm_.resident_bytes() + 512 * kMiB, 0);
        xlm_.apply(xlm_.greedy(UINT64_MAX / 2, XLM_PLACE_CPU, XLM_PLACE_CPU));
        xlm_.settle_all();
    }

    void during(const std::string & what, size_t step_tokens, size_t cycles, const Deadline & deadline) {
        const std::vector<llama_token> tokens = random_tokens(step_tokens, session_->n_vocab(), 3);
        const uint64_t full = warm_up(tokens);
        Reclaimer reclaimer(xlm_, device_, full, cycles);
        std::vector<double> step_us;
        while (!reclaimer.finished() && !deadline.passed())
            step_us.push_back(step(tokens, full, reclaimer));
        report(what, reclaimer.stop(), step_us, cycles, full);
        xlm_.set_budget(xlm_.resident_bytes() + 512 * kMiB, 0);
        xlm_.settle_all();
    }

private:
    // All copies, KV and scratch of such a step are on the device afterwards; returns the budget that just holds them.
    uint64_t warm_up(const std::vector<llama_token> & tokens) {
        session_->clear();
        Plan plan = xlm_.all(XLM_PLACE_RESIDENT);
        xlm_.apply(plan);
        xlm_.settle_all();
        for (int i = 0; i < 2; i++)
            session_->decode(tokens, false);
        const xlm_memory memory = xlm_.memory();
        plan.reserve_bytes = memory.scratch_bytes + memory.ring_bytes;
        xlm_.apply(plan);
        xlm_.set_budget(memory.used_bytes, 0);
        return memory.used_bytes;
    }

    double step(const std::vector<llama_token> & tokens, uint64_t full, Reclaimer & reclaimer) {
        if (session_->room() < tokens.size()) session_->clear();
        const uint64_t begin = now_ns();
        session_->decode(tokens, false);
        const uint64_t took = now_ns() - begin;
        uint32_t more = 0;
        xlm_device_settle(1024 * kMiB, &more);
        reclaimer.step_done(more == 0 && xlm_.memory().used_bytes >= full - full / 10, took);
        return static_cast<double>(took) / 1e3;
    }

    void report(const std::string & what, const Samples & s, const std::vector<double> & step_us, size_t cycles,
                uint64_t full) {
        const size_t n = s.request_us.size();
        Json detail = {{"asked", cycles},
                       {"full_bytes", full},
                       {"request_to_release", distribution(s.request_us, "us")},
                       {"as_the_device_measured", distribution(s.native_us, "us")},
                       {"step", distribution(step_us, "us")},
                       {"mean_released_bytes", n ? s.released_bytes / n : 0},
                       {"incomplete", s.incomplete}};
        if (!s.failure.empty()) detail["failure"] = s.failure;
        if (n == 0 && s.failure.empty())
            return c_.report.not_run("reclaim in " + what, "no reclaim came to pass in time");
        c_.report.require("reclaim in " + what, s.failure.empty() && s.incomplete == 0, detail);
        c_.report.require("reclaim in " + what + ": the device's own counter fell by what was released",
                          s.counter_short == 0,
                          {{"reclaims", n}, {"counter_short", s.counter_short}, {"slack_bytes", kCounterSlack}});
        c_.report.require("reclaim in " + what + ": released memory can be allocated", s.not_allocatable == 0,
                          {{"tried", s.tried_allocations}, {"refused", s.not_allocatable}});
    }

    Context & c_;
    const InnerDevice & device_;
    Xlm & xlm_;
    Shape shape_;
    std::unique_ptr<Session> session_;
};

} // namespace

void check_reclaim(Context & c) {
    const InnerDevice device(c.options);
    const uint64_t budget = std::min<uint64_t>(device.memory().free_bytes / 10 * 9, 64ull << 30);
    Xlm xlm(c.options, budget);
    ReclaimCheck check(c, device, xlm);
    const size_t cycles = c.options.quick ? 24 : 200;
    const Deadline half(c.deadline.left_seconds() / 2);
    guarded(c, "reclaim in decode", [&] { check.during("decode", 1, cycles, half); });
    guarded(c, "reclaim in prefill", [&] { check.during("prefill", c.options.quick ? 64 : 512, cycles, c.deadline); });
}

} // namespace kit
