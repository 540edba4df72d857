// Results as JSON lines, each flushed at once: what was found before a crash is not lost.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdio>
#include <mutex>
#include <string>

namespace kit {

using Json = nlohmann::ordered_json;

// pass/fail: a requirement was met or not. note: a fact without a requirement.
// not_run: no time, no memory or not offered by the device. error: the check itself broke.
enum class Verdict { pass, fail, note, not_run, error };

class Report {
public:
    // Throws std::runtime_error when the file cannot be written.
    Report(const std::string & path, std::string group);
    ~Report();
    Report(const Report &) = delete;
    Report & operator=(const Report &) = delete;

    // Thread-safe.
    void add(const std::string & check, Verdict verdict, Json detail = Json::object());
    void require(const std::string & check, bool ok, Json detail = Json::object()) {
        add(check, ok ? Verdict::pass : Verdict::fail, std::move(detail));
    }
    void note(const std::string & check, Json detail) { add(check, Verdict::note, std::move(detail)); }
    void not_run(const std::string & check, const std::string & why) { add(check, Verdict::not_run, {{"why", why}}); }

private:
    std::mutex mutex_;
    std::FILE * file_ = nullptr;
    std::string group_;
};

// p50, p99, max, mean, n of a sample, in the sample's unit; names end in `unit`.
Json distribution(std::vector<double> values, const std::string & unit);
double median(std::vector<double> values);

} // namespace kit
