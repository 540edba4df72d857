// Scratch of long steps that is lent to copies while only short ones run: the bits stay, the budget holds, and a long
// step has it back at once.
#include "backend_cases.hpp"
#include "backend_storm.hpp"

#include <algorithm>

using namespace toy;

namespace {

constexpr int kLayers = 3;
constexpr int kFew = 2, kLong = 12; // tokens
constexpr uint64_t kRing = 128 << 10;
constexpr int kSettled = 8; // steps of one token, after which all is lent

struct Pair : toy::Pair {
    explicit Pair(uint32_t seed) : toy::Pair(seed, kLayers, false) {}
    void steps(std::mt19937 & random, int count, int n_tokens) {
        for (int i = 0; i < count; i++) {
            CHECK(step(random, n_tokens));
            check_books();
        }
    }
};

std::vector<xlm_sublayer_info> sublayers() {
    std::vector<xlm_sublayer_info> found(xlm_device_sublayer_count());
    for (uint32_t i = 0; i < found.size(); i++) {
        found[i].struct_size = sizeof found[i];
        CHECK_EQ(xlm_device_sublayer(i, &found[i]), XLM_OK);
    }
    return found;
}

// Of long steps all but the small tensors streams; short ones keep everything, or `few` placements.
void set_lending(uint64_t short_reserve, uint64_t reserve, const std::vector<uint8_t> & few, uint8_t many) {
    std::vector<uint8_t> rest(few.size(), many);
    for (const xlm_sublayer_info & one : sublayers())
        if (one.kind == XLM_KIND_SMALL) rest[one.index] = XLM_PLACE_RESIDENT;
    set_two_tiers(kFew, few, rest, kRing, reserve, short_reserve);
}

std::vector<uint8_t> everything() {
    return std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT);
}

uint64_t weight_bytes(bool small_only) {
    uint64_t bytes = 0;
    for (const xlm_sublayer_info & one : sublayers())
        if (one.kind == XLM_KIND_SMALL || (!small_only && one.kind != XLM_KIND_LOOKUP)) bytes += one.device_bytes;
    return bytes;
}

uint64_t state_bytes() {
    uint64_t bytes = 0;
    for (const xlm_sublayer_info & one : sublayers())
        bytes += one.kv_device_bytes;
    return bytes;
}

// What steps of each kind take for activations, with everything resident.
uint64_t scratch_of(Pair & pair, std::mt19937 & random, int n_tokens) {
    set_placements(everything(), 0);
    pair.steps(random, 1, n_tokens);
    return memory().scratch_bytes;
}

// A budget with room for the long steps and little else, and for the short ones with all copies.
struct Sizes {
    uint64_t short_reserve = 0, reserve = 0, budget = 0;
};

Sizes sizes_for(Pair & pair, std::mt19937 & random) {
    set_budget(kMuch);
    Sizes sizes;
    sizes.short_reserve = kRing + 2 * scratch_of(pair, random, 1);
    sizes.budget = weight_bytes(false) + state_bytes() + sizes.short_reserve;
    sizes.reserve = sizes.budget - weight_bytes(true) - state_bytes();
    CHECK(sizes.reserve > kRing + scratch_of(pair, random, kLong));
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_CPU), 0);
    set_budget(sizes.budget);
    return sizes;
}

void test_lent_and_taken_back() {
    Pair pair(1);
    std::mt19937 random(2);
    const Sizes sizes = sizes_for(pair, random);
    set_lending(sizes.short_reserve, sizes.reserve, everything(), XLM_PLACE_STREAM);
    for (int round = 0; round < 3; round++) {
        pair.steps(random, 1, kLong);
        CHECK_EQ(memory().resident_bytes, weight_bytes(true)); // as the long step left it
        pair.steps(random, 2, 1);
        CHECK_EQ(memory().resident_bytes, weight_bytes(true)); // not yet
        pair.steps(random, kSettled, 1);
        CHECK_EQ(memory().resident_bytes, weight_bytes(false));
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        pair.steps(random, 3, 2);
        CHECK_EQ(stats().bytes_streamed, uint64_t{0}); // of what is there nothing is copied again
        CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
    }
    CHECK(pair.same_caches());
}

// Long and short steps in turn copy nothing that the next long one drops again.
void test_in_turn() {
    Pair pair(3);
    std::mt19937 random(4);
    const Sizes sizes = sizes_for(pair, random);
    set_lending(sizes.short_reserve, sizes.reserve, everything(), XLM_PLACE_STREAM);
    pair.steps(random, 1, kLong);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    for (int i = 0; i < 4; i++) {
        pair.steps(random, 2, 1);
        uint32_t more = 0;
        CHECK_EQ(xlm_device_settle(1 << 30, &more), XLM_OK);
        pair.steps(random, 1, 3);
        CHECK_EQ(memory().resident_bytes, weight_bytes(true));
    }
    CHECK_EQ(stats().n_evictions, uint64_t{0});
    CHECK(pair.same_caches());
}

// Graphs that are taken again, as llama.cpp does: by the plan of a long step a copy that came since must not be
// streamed. Its scratch is no more than short ones may have, so nothing else makes that plan stale.
void test_graphs_taken_again() {
    Pair pair(17);
    std::mt19937 random(18);
    set_budget(kMuch);
    set_placements(everything(), 0);
    CHECK(pair.step_again(random, kLong));
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_CPU), 0);
    const uint64_t short_reserve = kRing + 2 * scratch_of(pair, random, kFew),
                   kept = weight_bytes(true) + state_bytes();
    const uint64_t budget = weight_bytes(false) + state_bytes() + short_reserve;
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_CPU), 0);
    set_budget(budget);
    set_lending(short_reserve, budget - kept, everything(), XLM_PLACE_STREAM);
    for (int round = 0; round < 4; round++) {
        for (const int n : {kFew + 1, 1, 1, 1, 1, 1}) {
            CHECK(pair.step_again(random, n));
            check_books();
        }
        CHECK_EQ(memory().resident_bytes, weight_bytes(false));
    }
    CHECK(pair.same_caches());
}

// In a budget below the schedule's, as after a reclaim, copies of all tiers may lie in what a long step needs.
void test_below_the_schedules_budget() {
    Pair pair(19);
    std::mt19937 random(20);
    const Sizes sizes = sizes_for(pair, random);
    std::vector<uint8_t> many = everything();
    uint64_t kept = state_bytes();
    for (const xlm_sublayer_info & one : sublayers()) {
        if (one.kind == XLM_KIND_FFN && one.layer > 0) many[one.index] = XLM_PLACE_STREAM;
        if (one.kind != XLM_KIND_LOOKUP && many[one.index] == XLM_PLACE_RESIDENT) kept += one.device_bytes;
    }
    const uint64_t reserve = sizes.reserve - 2 * kRing / 3;
    set_two_tiers(kFew, everything(), many, kRing, reserve, sizes.short_reserve);
    for (uint64_t less = 0; less < 200 << 10; less += 20 << 10) {
        set_budget(kept + reserve - less);
        for (int round = 0; round < 3; round++) {
            pair.steps(random, kSettled, 1);
            CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
            pair.steps(random, 1, kLong);
            CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
        }
    }
    CHECK(pair.same_caches());
}

// Caches are lent to as well: a long step that streams them finds them at home.
void test_caches() {
    Pair pair(5);
    std::mt19937 random(6);
    const Sizes sizes = sizes_for(pair, random);
    set_lending(sizes.short_reserve, sizes.reserve + state_bytes(), everything(), XLM_PLACE_STREAM_KV);
    for (int round = 0; round < 3; round++) {
        pair.steps(random, kSettled, 1);
        CHECK_EQ(memory().kv_bytes, state_bytes());
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        pair.steps(random, 1, kLong);
        CHECK_EQ(memory().kv_bytes, uint64_t{0});
        CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
    }
    CHECK(pair.same_caches());
}

// Caches alone, of sub-layers that no tier keeps.
void test_caches_alone() {
    Pair pair(15);
    std::mt19937 random(16);
    const Sizes sizes = sizes_for(pair, random);
    std::vector<uint8_t> few(xlm_device_sublayer_count(), XLM_PLACE_STREAM);
    for (const xlm_sublayer_info & one : sublayers())
        if (one.kind == XLM_KIND_SMALL) few[one.index] = XLM_PLACE_RESIDENT;
    set_lending(sizes.short_reserve, sizes.budget - weight_bytes(true), few, XLM_PLACE_STREAM_KV);
    for (int round = 0; round < 3; round++) {
        pair.steps(random, kSettled, 1);
        CHECK_EQ(memory().kv_bytes, state_bytes());
        pair.steps(random, 1, kLong);
        CHECK_EQ(memory().kv_bytes, uint64_t{0});
    }
    CHECK(pair.same_caches());
}

// A schedule that comes while memory is lent is lent by at once, and one that lends nothing takes it back.
void test_schedules() {
    Pair pair(7);
    std::mt19937 random(8);
    const Sizes sizes = sizes_for(pair, random);
    for (int i = 0; i < 3; i++) {
        set_lending(sizes.short_reserve, sizes.reserve, everything(), XLM_PLACE_STREAM);
        pair.steps(random, kSettled, 1);
        CHECK_EQ(memory().resident_bytes, weight_bytes(false));
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        set_lending(sizes.short_reserve, sizes.reserve, everything(), XLM_PLACE_STREAM);
        pair.steps(random, 1, 1);
        CHECK_EQ(stats().n_evictions, uint64_t{0});
        set_lending(0, sizes.reserve, std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_STREAM),
                    XLM_PLACE_STREAM);
        pair.steps(random, 1, 1);
        CHECK_EQ(memory().resident_bytes, weight_bytes(true));
        pair.steps(random, 1, kLong);
    }
    CHECK(pair.same_caches());
}

void test_reclaims() {
    Pair pair(9);
    std::mt19937 random(10);
    const Sizes sizes = sizes_for(pair, random);
    const Storm storm;
    for (int i = 0; i < 60; i++) {
        const uint64_t reserve = i % 3 ? sizes.reserve : sizes.budget;
        const uint8_t many = i % 4 ? XLM_PLACE_STREAM : XLM_PLACE_STREAM_KV;
        if (i % 10 == 0) set_lending(sizes.short_reserve, reserve, everything(), many);
        CHECK(pair.step(random, random() % 9 == 0 ? 5 : 1));
    }
    CHECK(pair.same_caches());
}

void test_request_at_every_border() {
    Pair pair(11);
    std::mt19937 random(12);
    const Sizes sizes = sizes_for(pair, random);
    const Pester pester;
    set_lending(sizes.short_reserve, kMuch - (300 << 10), everything(), XLM_PLACE_STREAM);
    for (int i = 0; i < 24; i++)
        CHECK(pair.step(random, i % 10 == 0 ? 5 : 1));
    CHECK(pair.same_caches());
}

void test_lost_device_costs_no_token() {
    for (uint32_t after = 0; after < 12; after++) {
        Pair pair(13);
        std::mt19937 random(14 + after);
        const Sizes sizes = sizes_for(pair, random);
        set_lending(sizes.short_reserve, sizes.reserve, everything(), XLM_PLACE_STREAM);
        pair.steps(random, 4, 1);
        CHECK_EQ(Sim::get().lose_device(3 * after), XLM_OK);
        for (int i = 0; i < 6; i++)
            CHECK(pair.step(random, i == 3 ? kLong : 1));
        CHECK_EQ(Sim::get().restore_device(), XLM_OK);
        CHECK_EQ(xlm_device_recover(), XLM_OK);
        pair.steps(random, kSettled, 1);
        CHECK_EQ(memory().resident_bytes, weight_bytes(false));
        CHECK(pair.same_caches());
    }
}

constexpr Case kCases[] = {
    {"lent", test_lent_and_taken_back},
    {"in_turn", test_in_turn},
    {"again", test_graphs_taken_again},
    {"below", test_below_the_schedules_budget},
    {"caches", test_caches},
    {"caches_alone", test_caches_alone},
    {"schedules", test_schedules},
    {"reclaims", test_reclaims},
    {"pestered", test_request_at_every_border},
    {"lost", test_lost_device_costs_no_token},
};

} // namespace

int main(int argc, char ** argv) {
    return run_cases(argc, argv, kCases);
}
