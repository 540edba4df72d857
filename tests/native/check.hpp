// A test harness in one header: TEST(name) { CHECK(...); } and XLM_TEST_MAIN in one file.
// A failed CHECK is reported and the test goes on; REQUIRE ends the test.
// Run all tests, or those named on the command line. Exit status 1 when any check failed.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace xlm::test {

struct Case {
    const char * name;
    void (*run)();
};

inline std::vector<Case> & cases() {
    static std::vector<Case> all;
    return all;
}

inline int & failures() {
    static int count = 0;
    return count;
}

struct Register {
    Register(const char * name, void (*run)()) { cases().push_back({name, run}); }
};

struct RequirementFailed : std::exception {
    const char * what() const noexcept override { return "a REQUIRE failed"; }
};

inline bool report(bool ok, const char * file, int line, const std::string & what) {
    if (ok) return true;
    failures()++;
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what.c_str());
    return false;
}

template <typename A, typename B>
bool report_equal(const A & a, const B & b, const char * file, int line, const char * text) {
    if (a == b) return true;
    std::ostringstream what;
    what << text << " (" << a << " != " << b << ")";
    return report(false, file, line, what.str());
}

inline void run_case(const Case & test) {
    const int before = failures();
    try {
        test.run();
    } catch (const std::exception & error) {
        report(false, test.name, 0, std::string("exception: ") + error.what());
    }
    std::fprintf(stderr, "%s %s\n", failures() == before ? "ok    " : "FAILED", test.name);
}

inline int run_all(int argc, char ** argv) {
    int n_run = 0;
    for (const Case & test : cases()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++)
            wanted = wanted || std::strcmp(argv[i], test.name) == 0;
        if (!wanted) continue;
        run_case(test);
        n_run++;
    }
    return failures() == 0 && n_run > 0 ? 0 : 1;
}

} // namespace xlm::test

#define TEST(name)                                                                                                     \
    static void name();                                                                                                \
    static const xlm::test::Register register_##name(#name, name);                                                     \
    static void name()
#define CHECK(condition) xlm::test::report(static_cast<bool>(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQ(a, b) xlm::test::report_equal((a), (b), __FILE__, __LINE__, #a " == " #b)
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!CHECK(condition)) throw xlm::test::RequirementFailed();                                                   \
    } while (false)
#define XLM_TEST_MAIN                                                                                                  \
    int main(int argc, char ** argv) {                                                                                 \
        return xlm::test::run_all(argc, argv);                                                                         \
    }
