// The main of a test program whose subjects run one a process, by name (without one: all that share a device), on a
// device of XLM0.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "backend_toy.hpp"

namespace toy {

struct Case {
    const char * name;
    void (*run)();
    uint64_t launch_ns = 0; // as open_device() takes it; other than 0: runs only by name
};

template <size_t n>
int run_cases(int argc, char ** argv, const Case (&cases)[n]) {
    const std::string wanted = argc > 1 ? argv[1] : "";
    const auto chosen = [&](const Case & test) { return wanted.empty() ? test.launch_ns == 0 : wanted == test.name; };
    uint64_t launch_ns = 0;
    for (const Case & test : cases)
        if (chosen(test)) launch_ns = test.launch_ns;
    open_device("sim", 0, 64 << 20, launch_ns);
    int n_run = 0;
    for (const Case & test : cases) {
        if (!chosen(test)) continue;
        std::printf("%s\n", test.name);
        std::fflush(stdout);
        test.run();
        n_run++;
    }
    CHECK(n_run > 0);
    xlm_device_close();
    std::puts("ok");
    return 0;
}

} // namespace toy
