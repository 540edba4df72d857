// The few words a native test needs. A failed check prints where and ends the process with 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                               \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

#define CHECK_EQ(a, b)                                                                                                 \
    do {                                                                                                               \
        const auto check_a = (a);                                                                                      \
        const auto check_b = (b);                                                                                      \
        if (!(check_a == check_b)) {                                                                                   \
            std::fprintf(stderr, "%s:%d: failed: %s == %s (%lld, %lld)\n", __FILE__, __LINE__, #a, #b,                 \
                         static_cast<long long>(check_a), static_cast<long long>(check_b));                            \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)
