#include "xlm.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace kit {

namespace {

constexpr uint64_t kMiB = 1024 * 1024;
// Pieces the ring holds: one being used, two on their way.
constexpr uint64_t kRingPieces = 3;
constexpr uint64_t kScratchGuess = 64 * kMiB; // before any step was seen

void check(const char * call, xlm_status status) {
    if (status != XLM_OK) throw XlmError(call, status);
}

// Attention first (its KV is read each token), then FFN and experts, then the output.
int rank(uint32_t kind) {
    switch (kind) {
    case XLM_KIND_SMALL: return 0;
    case XLM_KIND_ATTENTION: return 1;
    case XLM_KIND_EXTRAS: return 2;
    case XLM_KIND_SHARED_EXPERTS: return 3;
    case XLM_KIND_FFN: return 4;
    case XLM_KIND_EXPERTS: return 5;
    default: return 6;
    }
}

xlm_placement placed(const xlm_sublayer_info & info, xlm_placement wanted) {
    if (info.kind == XLM_KIND_LOOKUP) return XLM_PLACE_CPU;
    // Norms and routers are a few KiB each: with any device use they are resident.
    if (info.kind == XLM_KIND_SMALL && wanted == XLM_PLACE_STREAM) return XLM_PLACE_RESIDENT;
    return wanted;
}

bool streams(const Plan & plan, size_t i) {
    return plan.decode[i] == XLM_PLACE_STREAM || plan.prefill[i] == XLM_PLACE_STREAM;
}

xlm_tier_schedule tier(uint32_t max_tokens, const std::vector<uint8_t> & placement, uint64_t scratch_bytes) {
    xlm_tier_schedule result = {};
    result.struct_size = sizeof result;
    result.max_tokens = max_tokens;
    result.placement = placement.data();
    result.scratch_bytes = scratch_bytes;
    return result;
}

template <typename Struct>
Struct sized() {
    Struct value = {};
    value.struct_size = sizeof value;
    return value;
}

} // namespace

XlmError::XlmError(const std::string & call, xlm_status status)
    : std::runtime_error(call + ": status " + std::to_string(status) + ": " + xlm_device_last_error()) {}

Xlm::Xlm(const Options & options, uint64_t budget_bytes) {
    auto config = sized<xlm_device_config>();
    config.inner = options.device.c_str();
    config.inner_library = options.library.c_str();
    config.inner_index = options.index;
    config.n_threads = options.threads;
    config.budget_bytes = budget_bytes;
    check("xlm_device_open", xlm_device_open(&config));
}

std::vector<xlm_sublayer_info> Xlm::sublayers() const {
    std::vector<xlm_sublayer_info> result(xlm_device_sublayer_count(), sized<xlm_sublayer_info>());
    for (uint32_t i = 0; i < result.size(); i++)
        check("xlm_device_sublayer", xlm_device_sublayer(i, &result[i]));
    return result;
}

uint64_t Xlm::resident_bytes() const {
    uint64_t sum = 0;
    for (const xlm_sublayer_info & info : sublayers())
        if (info.kind != XLM_KIND_LOOKUP) sum += info.device_bytes + info.kv_device_bytes;
    return sum;
}

Plan Xlm::all(xlm_placement placement) const {
    Plan plan;
    plan.name = placement == XLM_PLACE_CPU ? "cpu" : placement == XLM_PLACE_STREAM ? "streamed" : "resident";
    for (const xlm_sublayer_info & info : sublayers())
        plan.decode.push_back(placed(info, placement));
    plan.prefill = plan.decode;
    refine(plan);
    return plan;
}

Plan Xlm::mixed(uint64_t seed, bool with_cpu) const {
    std::mt19937_64 random(seed);
    Plan plan;
    plan.name = (with_cpu ? "mixed with CPU " : "mixed on device ") + std::to_string(seed);
    const int lowest = with_cpu ? XLM_PLACE_CPU : XLM_PLACE_STREAM;
    for (const xlm_sublayer_info & info : sublayers()) {
        const auto draw = static_cast<uint64_t>(XLM_PLACE_RESIDENT - lowest + 1);
        plan.decode.push_back(placed(info, static_cast<xlm_placement>(lowest + static_cast<int>(random() % draw))));
        plan.prefill.push_back(placed(info, static_cast<xlm_placement>(lowest + static_cast<int>(random() % draw))));
    }
    refine(plan);
    return plan;
}

Plan Xlm::greedy(uint64_t budget_bytes, xlm_placement decode_rest, xlm_placement prefill_rest) const {
    const std::vector<xlm_sublayer_info> infos = sublayers();
    Plan plan;
    for (const xlm_sublayer_info & info : infos) {
        plan.decode.push_back(placed(info, decode_rest));
        plan.prefill.push_back(placed(info, prefill_rest));
    }
    refine(plan);
    uint64_t left = budget_bytes > plan.reserve_bytes ? budget_bytes - plan.reserve_bytes : 0;
    for (uint32_t i : plan.priority) {
        const uint64_t need = infos[i].device_bytes + infos[i].kv_device_bytes;
        if (infos[i].kind == XLM_KIND_LOOKUP || need > left) continue;
        left -= need;
        plan.decode[i] = plan.prefill[i] = XLM_PLACE_RESIDENT;
    }
    return plan;
}

void Xlm::refine(Plan & plan) const {
    const std::vector<xlm_sublayer_info> infos = sublayers();
    plan.priority.resize(infos.size());
    std::iota(plan.priority.begin(), plan.priority.end(), 0u);
    std::stable_sort(plan.priority.begin(), plan.priority.end(),
                     [&](uint32_t a, uint32_t b) { return rank(infos[a].kind) < rank(infos[b].kind); });
    uint64_t largest = 0;
    for (size_t i = 0; i < infos.size(); i++)
        if (streams(plan, i)) largest = std::max(largest, infos[i].largest_piece_bytes);
    plan.ring_bytes = kRingPieces * largest;
    const xlm_stats seen = stats();
    const uint64_t scratch = std::max(seen.scratch_need_prefill_bytes, seen.scratch_need_decode_bytes);
    plan.reserve_bytes = plan.ring_bytes + (scratch ? scratch : kScratchGuess);
}

void Xlm::apply(const Plan & plan) {
    const uint64_t scratch = plan.reserve_bytes - plan.ring_bytes;
    const xlm_tier_schedule tiers[] = {tier(Plan::kDecodeTokens, plan.decode, scratch),
                                       tier(UINT32_MAX, plan.prefill, scratch)};
    auto schedule = sized<xlm_schedule>();
    schedule.n_tiers = 2;
    schedule.tiers = tiers;
    schedule.n_sublayers = static_cast<uint32_t>(plan.decode.size());
    schedule.priority = plan.priority.data();
    schedule.ring_bytes = plan.ring_bytes;
    schedule.reserve_bytes = plan.reserve_bytes;
    schedule.schedule_id = ++schedule_id_;
    check("xlm_device_set_schedule", xlm_device_set_schedule(&schedule));
}

void Xlm::settle_all() {
    for (uint32_t more = 1; more != 0;)
        check("xlm_device_settle", xlm_device_settle(256 * kMiB, &more));
}

void Xlm::begin_step(uint32_t n_tokens) {
    check("xlm_device_begin_step", xlm_device_begin_step(n_tokens));
}

xlm_release Xlm::set_budget(uint64_t bytes, uint64_t timeout_ns) {
    auto release = sized<xlm_release>();
    check("xlm_device_set_budget", xlm_device_set_budget(bytes, timeout_ns, &release));
    return release;
}

xlm_memory Xlm::memory() const {
    auto memory = sized<xlm_memory>();
    check("xlm_device_memory", xlm_device_memory(&memory));
    return memory;
}

xlm_stats Xlm::stats() const {
    auto stats = sized<xlm_stats>();
    check("xlm_device_stats", xlm_device_stats(&stats));
    return stats;
}

void Xlm::reset_stats() {
    check("xlm_device_reset_stats", xlm_device_reset_stats());
}

} // namespace kit
