// Monotonic time and sleeping to absolute deadlines.
#pragma once

#include <cstdint>

namespace xlm::sim {

// Nanoseconds on the steady clock (CLOCK_MONOTONIC).
using ns_t = int64_t;

ns_t now_ns();

// Sleeps until the clock shows deadline_ns; never spins. Overshoots by some
// tens of microseconds. For worker threads, which must not take a core.
void sleep_until_ns(ns_t deadline_ns);

// The same for a waiting host thread: a whole wait below 100 us is spun,
// because a sleep would overshoot by as much.
void host_wait_until_ns(ns_t deadline_ns);

} // namespace xlm::sim
