// The main of a test program whose subjects run one a process, by name (all of them without one), on a device of XLM0.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "backend_toy.hpp"

namespace toy {

struct Case {
    const char * name;
    void (*run)();
};

template <size_t n>
int run_cases(int argc, char ** argv, const Case (&cases)[n]) {
    const std::string wanted = argc > 1 ? argv[1] : "";
    open_device("sim", 0);
    int n_run = 0;
    for (const Case & test : cases) {
        if (!wanted.empty() && wanted != test.name) continue;
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
