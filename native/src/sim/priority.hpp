// A card computes without taking CPU time from anybody; the virtual GPU's
// threads do. So they step back: what runs beside them (a link thread that
// takes a reclaim, a game) gets the core when it wants it.
#pragma once

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace xlm::sim {

// Of the calling thread, and of threads it starts later. Elsewhere than on Linux nice is the process': left alone.
inline void step_back() {
#if defined(__linux__)
    constexpr int less_important = 5;
    const int now = getpriority(PRIO_PROCESS, 0);
    setpriority(PRIO_PROCESS, 0, now + less_important < 19 ? now + less_important : 19);
#endif
}

} // namespace xlm::sim
