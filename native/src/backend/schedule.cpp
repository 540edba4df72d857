#include "schedule.hpp"

#include "errors.hpp"

#include <cstring>
#include <numeric>

namespace xlm {

namespace {

[[noreturn]] void refuse(const std::string & what) {
    throw ApiError(XLM_ERR_INVALID_ARGUMENT, "schedule: " + what);
}

// Callers built with an older header have smaller tier structs: step by their size.
xlm_tier_schedule read_tier(const xlm_tier_schedule * first, uint32_t index) {
    const uint32_t stride = first->struct_size;
    if (stride < offsetof(xlm_tier_schedule, placement) + sizeof(void *)) refuse("tier struct_size too small");
    xlm_tier_schedule tier{};
    const char * at = reinterpret_cast<const char *>(first) + static_cast<size_t>(stride) * index;
    std::memcpy(&tier, at, std::min<size_t>(stride, sizeof tier));
    if (tier.struct_size != stride) refuse("tiers differ in struct_size");
    return tier;
}

std::vector<uint8_t> read_placement(const xlm_tier_schedule & tier, uint32_t n_sublayers) {
    if (!tier.placement && n_sublayers > 0) refuse("a tier has no placement");
    std::vector<uint8_t> placement(tier.placement, tier.placement + n_sublayers);
    for (uint8_t value : placement)
        if (value > XLM_PLACE_STREAM_KV) refuse("placement " + std::to_string(value) + " is unknown");
    return placement;
}

std::vector<uint32_t> read_priority(const uint32_t * priority, uint32_t n_sublayers) {
    std::vector<uint32_t> order(n_sublayers);
    std::iota(order.begin(), order.end(), 0U);
    if (!priority) return order;
    std::vector<uint8_t> seen(n_sublayers, 0);
    for (uint32_t i = 0; i < n_sublayers; i++) {
        if (priority[i] >= n_sublayers || seen[priority[i]]++)
            refuse("priority is not a permutation of the sub-layers");
        order[i] = priority[i];
    }
    return order;
}

std::vector<xlm_expert_policy> read_experts(const xlm_expert_policy * first, uint32_t n_sublayers) {
    std::vector<xlm_expert_policy> policies;
    if (!first) return policies;
    const uint32_t stride = first->struct_size;
    if (stride < offsetof(xlm_expert_policy, cpu_fixed_ns) + sizeof(uint64_t))
        refuse("expert policy struct_size too small");
    policies.resize(n_sublayers);
    for (uint32_t i = 0; i < n_sublayers; i++) {
        const char * at = reinterpret_cast<const char *>(first) + static_cast<size_t>(stride) * i;
        std::memcpy(&policies[i], at, std::min<size_t>(stride, sizeof policies[i]));
        if (policies[i].struct_size != stride) refuse("expert policies differ in struct_size");
    }
    return policies;
}

void read_tiers(const xlm_tier_schedule * tiers, uint32_t n_tiers, uint32_t n_sublayers, std::vector<uint32_t> & limits,
                Schedule & schedule) {
    for (uint32_t t = 0; t < n_tiers; t++) {
        const xlm_tier_schedule tier = read_tier(tiers, t);
        if (t > 0 && tier.max_tokens <= limits.back()) refuse("tiers are not in ascending order of max_tokens");
        limits.push_back(tier.max_tokens);
        schedule.placement.push_back(read_placement(tier, n_sublayers));
        schedule.tier_reserve_bytes.push_back(tier.reserve_bytes);
    }
}

} // namespace

Schedule read_schedule(const xlm_schedule & source, uint32_t n_sublayers) {
    if (source.n_sublayers != n_sublayers)
        refuse("has " + std::to_string(source.n_sublayers) + " sub-layers, there are " + std::to_string(n_sublayers));
    if (source.n_tiers == 0 || source.n_tiers > 64 || !source.tiers) refuse("needs 1 to 64 tiers");
    if (source.n_vision_tiers > 64 || (source.n_vision_tiers > 0 && !source.vision_tiers))
        refuse("has 0 to 64 vision tiers");
    Schedule schedule;
    schedule.id = source.schedule_id;
    schedule.ring_bytes = source.ring_bytes;
    schedule.reserve_bytes = source.reserve_bytes;
    schedule.priority = read_priority(source.priority, n_sublayers);
    schedule.experts = read_experts(source.experts, n_sublayers);
    schedule.expert_window_bytes = source.expert_window_bytes;
    schedule.vision_ring_bytes = source.vision_ring_bytes;
    read_tiers(source.tiers, source.n_tiers, n_sublayers, schedule.tier_max_tokens, schedule);
    read_tiers(source.vision_tiers, source.n_vision_tiers, n_sublayers, schedule.vision_max_patches, schedule);
    return schedule;
}

} // namespace xlm
