// xlm-gpu-check GROUP key=value...: runs one group of checks and writes JSON lines.
//
// One process a group: a fault of a driver or an abort in ggml ends that group only, and what it had found is on disk.
// Exit status: 0 ran to its end (whatever the verdicts), 1 the group could not start, 2 bad arguments.
#include "groups.hpp"

#include <cstdio>
#include <map>
#include <stdexcept>

namespace {

const std::map<std::string, void (*)(kit::Context &)> & groups() {
    static const std::map<std::string, void (*)(kit::Context &)> table = {
        {"models", kit::make_models},
        {"environment", kit::check_environment},
        {"lossless", kit::check_lossless},
        {"changes", kit::check_changes},
        {"kv", kit::check_kv},
        {"reclaim", kit::check_reclaim},
        {"bandwidth", kit::check_bandwidth},
        {"speed", kit::check_speed},
    };
    return table;
}

int run_group(const kit::Options & options) {
    const auto found = groups().find(options.group);
    if (found == groups().end()) throw std::invalid_argument("no group " + options.group);
    kit::Report report(options.out, options.group);
    const kit::Deadline deadline(options.seconds);
    kit::Context context{options, report, deadline};
    try {
        found->second(context);
    } catch (const std::exception & error) {
        report.add("group " + options.group, kit::Verdict::error, {{"why", error.what()}});
        return 1;
    }
    return 0;
}

} // namespace

int main(int argc, char ** argv) {
    try {
        kit::quiet_logs();
        return run_group(kit::parse_options(argc, argv));
    } catch (const std::exception & error) {
        std::fprintf(stderr, "xlm-gpu-check: %s\n", error.what());
        return 2;
    }
}
