// The calling thread passes messages on: when one comes, it runs before those that compute. It gets no more than its
// share of the CPU, and needs no privileges; where the system refuses, all stays as it was. Threads that it starts on
// Linux and macOS inherit it. Decision 24; the same as in the Python SDK.
#pragma once

#if defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#elif defined(__linux__)
#include <cstdint>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <pthread/qos.h>
#endif

namespace xlm::client {

inline void answer_quickly() noexcept {
#if defined(_WIN32)
    SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_HIGHEST);
#elif defined(__linux__) && defined(SYS_sched_setattr)
    struct Attributes { // the first version of the kernel's sched_attr; not every C library has it
        std::uint32_t size, policy;
        std::uint64_t flags;
        std::int32_t nice;
        std::uint32_t priority;
        std::uint64_t runtime_ns, deadline_ns, period_ns;
    };
    constexpr std::uint64_t shortest_slice_ns = 100'000; // lets it preempt (6.12 and later; before, nothing)
    if (sched_getscheduler(0) != SCHED_OTHER) return;    // somebody has chosen otherwise
    Attributes wanted{};
    wanted.size = sizeof wanted;
    wanted.policy = SCHED_OTHER;
    wanted.nice = getpriority(PRIO_PROCESS, 0);
    wanted.runtime_ns = shortest_slice_ns;
    syscall(SYS_sched_setattr, 0, &wanted, 0U);
#elif defined(__APPLE__)
    pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
#endif
}

} // namespace xlm::client
