#include "clock.hpp"

#include <chrono>
#include <thread>

#if defined(__linux__)
#include <cerrno>
#include <ctime>
#include <sys/prctl.h>
#endif

namespace xlm::sim {

namespace {

constexpr ns_t max_spin_ns = 100'000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#if defined(__linux__)
// The default slack of 50 us would be added to every sleep. The setting is the
// thread's own, so the caller's value is put back.
class FineTimer {
public:
    FineTimer() : before_ns_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1000UL); }
    ~FineTimer() {
        if (before_ns_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_ns_));
    }
    FineTimer(const FineTimer &) = delete;
    FineTimer & operator=(const FineTimer &) = delete;

private:
    long before_ns_;
};
#endif

} // namespace

ns_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void sleep_until_ns(ns_t deadline_ns) {
    if (deadline_ns <= now_ns()) return;
#if defined(__linux__)
    const FineTimer fine;
    timespec until{};
    until.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000);
    until.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
#else
    using clock = std::chrono::steady_clock;
    std::this_thread::sleep_until(clock::time_point(std::chrono::nanoseconds(deadline_ns)));
#endif
}

void host_wait_until_ns(ns_t deadline_ns) {
    if (deadline_ns - now_ns() > max_spin_ns) {
        sleep_until_ns(deadline_ns);
        return;
    }
    while (now_ns() < deadline_ns)
        relax();
}

} // namespace xlm::sim
