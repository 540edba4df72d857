// What the driver (kit/driver.py) asks one child process of the runner to do.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kit {

struct Options {
    std::string group;        // which checks
    std::string device;       // "cuda", "sim" or "vulkan": the inner device
    std::string library;      // its ggml backend library
    uint32_t index = 0;       // which device of it
    std::string models = "."; // folder for generated models
    std::string out = "-";    // JSON lines go here; "-" = stdout
    double seconds = 60.0;    // time this group may take
    uint32_t threads = 0;     // CPU threads; 0 = hardware
    bool quick = false;       // small models, few repetitions: exercises everything, measures nothing worth quoting
};

// Throws std::invalid_argument naming the argument. Form: GROUP key=value...
Options parse_options(int argc, char ** argv);

// Time left of the group's budget; every loop asks it.
class Deadline {
public:
    explicit Deadline(double seconds) : end_(std::chrono::steady_clock::now() + to_duration(seconds)) {}
    double left_seconds() const {
        return std::chrono::duration<double>(end_ - std::chrono::steady_clock::now()).count();
    }
    bool passed() const { return left_seconds() <= 0.0; }

private:
    static std::chrono::steady_clock::duration to_duration(double seconds) {
        return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
    }
    std::chrono::steady_clock::time_point end_;
};

inline uint64_t now_ns() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

} // namespace kit
