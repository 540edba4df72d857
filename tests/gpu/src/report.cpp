#include "report.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace kit {

namespace {

const char * name_of(Verdict verdict) {
    switch (verdict) {
    case Verdict::pass: return "pass";
    case Verdict::fail: return "fail";
    case Verdict::note: return "note";
    case Verdict::not_run: return "not_run";
    case Verdict::error: return "error";
    }
    return "error";
}

// Nearest-rank percentile of a sorted sample.
double percentile(const std::vector<double> & sorted, double p) {
    const auto rank = static_cast<size_t>(std::ceil(p / 100.0 * static_cast<double>(sorted.size())));
    return sorted[std::min(sorted.size() - 1, rank > 0 ? rank - 1 : 0)];
}

} // namespace

Report::Report(const std::string & path, std::string group) : group_(std::move(group)) {
    file_ = path == "-" ? stdout : std::fopen(path.c_str(), "a");
    if (!file_) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

Report::~Report() {
    if (file_ != stdout) std::fclose(file_);
}

void Report::add(const std::string & check, Verdict verdict, Json detail) {
    Json line = {{"group", group_}, {"check", check}, {"verdict", name_of(verdict)}};
    for (auto & [key, value] : detail.items())
        line[key] = value;
    const std::string text = line.dump(-1, ' ', true, Json::error_handler_t::replace);
    const std::lock_guard<std::mutex> lock(mutex_);
    std::fprintf(file_, "%s\n", text.c_str());
    std::fflush(file_);
}

Json distribution(std::vector<double> values, const std::string & unit) {
    if (values.empty()) return {{"n", 0}};
    std::sort(values.begin(), values.end());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    return {{"n", values.size()},
            {"p50_" + unit, percentile(values, 50)},
            {"p99_" + unit, percentile(values, 99)},
            {"max_" + unit, values.back()},
            {"mean_" + unit, sum / static_cast<double>(values.size())}};
}

double median(std::vector<double> values) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return percentile(values, 50);
}

} // namespace kit
