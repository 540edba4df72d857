#include "config.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

namespace xlm::sim {

namespace {

constexpr uint32_t max_threads = 512; // GGML_MAX_N_THREADS

bool is_rate(double value) {
    return std::isfinite(value) && value >= 0;
}

bool parse_number(const std::string & text, double & value) {
    char * end = nullptr;
    value = std::strtod(text.c_str(), &end);
    return !text.empty() && *end == '\0' && is_rate(value);
}

bool parse_rate(const std::string & text, double & field) {
    return parse_number(text, field);
}

bool parse_count(const std::string & text, uint32_t & field) {
    double value = 0;
    if (!parse_number(text, value) || value > max_threads || value != std::floor(value)) return false;
    field = static_cast<uint32_t>(value);
    return true;
}

bool parse_size(const std::string & text, uint64_t & field) {
    static const std::map<std::string, double> units = {
        {"", 1.0}, {"B", 1.0}, {"KiB", 1024.0}, {"MiB", 1024.0 * 1024}, {"GiB", 1024.0 * 1024 * 1024}};
    char * end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const auto unit = units.find(end);
    if (end == text.c_str() || unit == units.end() || !is_rate(value)) return false;
    const double bytes = value * unit->second;
    if (bytes > 9.0e18) return false;
    field = static_cast<uint64_t>(bytes);
    return true;
}

bool parse_name(const std::map<std::string, uint32_t> & names, const std::string & text, uint32_t & field) {
    const auto found = names.find(text);
    if (found == names.end()) return false;
    field = found->second;
    return true;
}

enum class Outcome { ok, unknown_key, bad_value };

Outcome apply(const std::string & key, const std::string & text, xlm_sim_config & c) {
    static const std::map<std::string, uint32_t> modes = {{"exact", XLM_SIM_EXACT}, {"modelled", XLM_SIM_MODELLED}};
    static const std::map<std::string, uint32_t> arbitrations = {
        {"fifo", XLM_SIM_FIFO}, {"chunked", XLM_SIM_CHUNKED}, {"small-first", XLM_SIM_SMALL_FIRST}};
    static const std::map<std::string, double xlm_sim_config::*> rates = {
        {"link", &xlm_sim_config::link_bytes_per_s},
        {"latency", &xlm_sim_config::link_latency_ns},
        {"flops", &xlm_sim_config::compute_flops_per_s},
        {"membw", &xlm_sim_config::memory_bytes_per_s},
        {"op_launch", &xlm_sim_config::op_launch_ns},
        {"graph_launch", &xlm_sim_config::graph_launch_ns},
        {"cpu_slowdown", &xlm_sim_config::cpu_slowdown_per_gb_s}};
    const auto outcome = [](bool parsed) { return parsed ? Outcome::ok : Outcome::bad_value; };
    if (key == "mode") return outcome(parse_name(modes, text, c.mode));
    if (key == "arbitration") return outcome(parse_name(arbitrations, text, c.arbitration));
    if (key == "vram") return outcome(parse_size(text, c.vram_bytes));
    if (key == "threads") return outcome(parse_count(text, c.n_threads));
    const auto rate = rates.find(key);
    if (rate == rates.end()) return Outcome::unknown_key;
    return outcome(parse_rate(text, c.*(rate->second)));
}

} // namespace

xlm_sim_config default_config() {
    xlm_sim_config c{};
    c.struct_size = sizeof c;
    c.mode = XLM_SIM_EXACT;
    c.vram_bytes = 256ull << 20;
    c.link_bytes_per_s = 12e9; // PCIe 3.0 x16 as measured with pinned memory
    c.link_latency_ns = 8000;
    c.arbitration = XLM_SIM_SMALL_FIRST;
    c.compute_flops_per_s = 1e12;
    c.memory_bytes_per_s = 100e9;
    c.op_launch_ns = 3000;
    c.graph_launch_ns = 5000;
    c.cpu_slowdown_per_gb_s = 0;
    c.n_threads = 0;
    return c;
}

std::string check_config(const xlm_sim_config & c) {
    if (c.mode > XLM_SIM_MODELLED) return "mode is neither XLM_SIM_EXACT nor XLM_SIM_MODELLED";
    if (c.arbitration > XLM_SIM_SMALL_FIRST) return "arbitration is not a xlm_sim_arbitration";
    if (c.vram_bytes == 0) return "vram_bytes is 0";
    if (!is_rate(c.link_bytes_per_s)) return "link_bytes_per_s is not a number >= 0";
    if (!is_rate(c.link_latency_ns)) return "link_latency_ns is not a number >= 0";
    if (!is_rate(c.compute_flops_per_s) || c.compute_flops_per_s == 0) return "compute_flops_per_s is not > 0";
    if (!is_rate(c.memory_bytes_per_s) || c.memory_bytes_per_s == 0) return "memory_bytes_per_s is not > 0";
    if (!is_rate(c.op_launch_ns)) return "op_launch_ns is not a number >= 0";
    if (!is_rate(c.graph_launch_ns)) return "graph_launch_ns is not a number >= 0";
    if (!is_rate(c.cpu_slowdown_per_gb_s)) return "cpu_slowdown_per_gb_s is not a number >= 0";
    if (c.n_threads > max_threads) return "n_threads is above 512";
    return {};
}

std::string parse_settings(const std::string & settings, xlm_sim_config & config) {
    size_t from = 0;
    while (from < settings.size()) {
        const size_t comma = std::min(settings.find(',', from), settings.size());
        const std::string item = settings.substr(from, comma - from);
        const size_t equals = item.find('=');
        if (equals == std::string::npos) return "'" + item + "' is not key=value";
        const std::string key = item.substr(0, equals);
        const Outcome outcome = apply(key, item.substr(equals + 1), config);
        if (outcome == Outcome::unknown_key) return "unknown key '" + key + "'";
        if (outcome == Outcome::bad_value) return "bad value in '" + item + "'";
        from = comma + 1;
    }
    return check_config(config);
}

} // namespace xlm::sim
