#include "options.hpp"

#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

namespace kit {

Options parse_options(int argc, char ** argv) {
    Options options;
    const std::map<std::string, std::function<void(const std::string &)>> setters = {
        {"device", [&](const std::string & v) { options.device = v; }},
        {"library", [&](const std::string & v) { options.library = v; }},
        {"index", [&](const std::string & v) { options.index = static_cast<uint32_t>(std::stoul(v)); }},
        {"models", [&](const std::string & v) { options.models = v; }},
        {"out", [&](const std::string & v) { options.out = v; }},
        {"seconds", [&](const std::string & v) { options.seconds = std::stod(v); }},
        {"threads", [&](const std::string & v) { options.threads = static_cast<uint32_t>(std::stoul(v)); }},
        {"quick", [&](const std::string & v) { options.quick = v == "1"; }},
    };
    if (argc < 2) throw std::invalid_argument("usage: xlm-gpu-check GROUP key=value...");
    options.group = argv[1];
    for (int i = 2; i < argc; i++) {
        const std::string argument = argv[i];
        const size_t at = argument.find('=');
        const auto setter = setters.find(argument.substr(0, at));
        if (at == std::string::npos || setter == setters.end())
            throw std::invalid_argument("unknown argument " + argument);
        setter->second(argument.substr(at + 1));
    }
    if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
    return options;
}

} // namespace kit
