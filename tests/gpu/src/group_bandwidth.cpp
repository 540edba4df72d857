// Copies between host and device, pinned and pageable, by size: what streaming can hope for.
#include "groups.hpp"

#include "rates.hpp"

namespace kit {

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

Json measure(const InnerDevice & device, size_t bytes, bool pinned, size_t total_bytes) {
    CopyPair pair(device, bytes, pinned);
    const size_t repeats = std::min<size_t>(256, std::max<size_t>(3, total_bytes / bytes));
    return {
        {"bytes", bytes}, {"upload_gb_s", pair.upload(repeats) / 1e9}, {"download_gb_s", pair.download(repeats) / 1e9}};
}

void table(Context & c, const InnerDevice & device, bool pinned) {
    const std::vector<size_t> sizes =
        c.options.quick ? std::vector<size_t>{64 * kKiB, kMiB}
                        : std::vector<size_t>{64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB};
    Json rows = Json::array();
    for (size_t bytes : sizes)
        if (!c.deadline.passed())
            rows.push_back(measure(device, bytes, pinned, c.options.quick ? 4 * kMiB : 512 * kMiB));
    c.report.note(pinned ? "copies, pinned memory" : "copies, pageable memory", {{"rows", rows}});
}

} // namespace

void check_bandwidth(Context & c) {
    const InnerDevice device(c.options);
    if (ggml_backend_dev_host_buffer_type(device.get()))
        guarded(c, "copies, pinned memory", [&] { table(c, device, true); });
    else
        c.report.not_run("copies, pinned memory", "the device offers no pinned host memory");
    guarded(c, "copies, pageable memory", [&] { table(c, device, false); });
}

} // namespace kit
