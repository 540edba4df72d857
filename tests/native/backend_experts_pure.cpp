// The decisions about single experts, without a device: what is kept, what is evicted, who computes what.
#include "backend_check.hpp"

#include "backend/experts.hpp"

#include <algorithm>
#include <cmath>
#include <list>
#include <numeric>
#include <random>

using namespace xlm;

namespace {

xlm_expert_policy rates(uint64_t upload_ns, uint64_t cpu_ns, uint64_t token_ns = 0, uint64_t fixed_ns = 0) {
    return {sizeof(xlm_expert_policy), 0, upload_ns, cpu_ns, token_ns, fixed_ns, 0, 0};
}

ExpertDemand demand_of(uint32_t n_experts, const std::vector<uint32_t> & used, uint32_t n_cpu = 0,
                       uint32_t behind = 0) {
    ExpertDemand demand;
    demand.pairs.assign(n_experts, 0);
    for (uint32_t expert : used)
        demand.pairs[expert]++;
    demand.n_used = static_cast<uint32_t>(used.size());
    demand.n_cpu_pairs_max = n_cpu;
    demand.n_behind_max = behind;
    return demand;
}

SlotMap slots_with(uint32_t n_experts, const std::vector<int32_t> & experts) {
    SlotMap map;
    map.reset(n_experts, static_cast<uint32_t>(experts.size()));
    for (uint32_t slot = 0; slot < experts.size(); slot++)
        if (experts[slot] >= 0) map.assign(slot, static_cast<uint32_t>(experts[slot]));
    return map;
}

void test_scores_are_shares_that_follow_the_text() {
    ExpertScores scores;
    scores.reset(4);
    CHECK(!scores.seen() && scores.share(0) == 0);
    for (int i = 0; i < 10; i++)
        scores.note({1, 1, 0, 0}, 1);
    CHECK(std::fabs(scores.share(0) - 1) < 1e-12 && scores.share(2) == 0);
    scores.note({0, 0, 256, 256}, 256); // a half-life of other tokens
    CHECK(scores.share(2) > 0.9 && scores.share(0) < 0.1 && scores.share(0) > 0);
    ExpertScores slow, fast;
    slow.reset(2), fast.reset(2);
    for (int i = 0; i < 64; i++)
        slow.note({1, 0}, 1);
    fast.note({64, 0}, 64); // the same tokens in one step
    CHECK(std::fabs(slow.values()[0] - fast.values()[0]) < 1e-12);
}

void test_slot_map() {
    SlotMap map = slots_with(5, {3, -1, 0});
    CHECK_EQ(map.n_filled(), 2U);
    map.assign(0, 4);
    CHECK_EQ(map.slot_of(3), -1);
    CHECK_EQ(map.slot_of(4), 0);
    map.clear(2);
    CHECK_EQ(map.slot_of(0), -1);
    CHECK_EQ(map.n_filled(), 1U);
}

void test_least_used_goes_first() {
    const SlotMap map = slots_with(6, {0, 1, 2});
    const std::vector<double> scores = {0.5, 0.1, 0.3, 0.2, 0, 0};
    const ExpertDecision decision = decide_experts(map, scores, demand_of(6, {0, 3}), rates(1, 0));
    CHECK(decision.compact);
    CHECK(decision.loads == std::vector<SlotLoad>({{1, 3}}));
    CHECK(decision.in_slots == std::vector<uint32_t>({0, 3}));
    CHECK_EQ(decision.n_hits, 1U);
    CHECK_EQ(decision.n_misses, 1U);
}

void test_empty_slots_before_any_eviction() {
    const ExpertDecision decision =
        decide_experts(slots_with(6, {0, -1, -1}), {0.5, 0, 0, 0.2, 0.3, 0}, demand_of(6, {3, 4}), rates(1, 0));
    CHECK(decision.loads == std::vector<SlotLoad>({{1, 4}, {2, 3}}));
}

void test_more_than_the_slots_go_through_the_window() {
    const std::vector<double> scores = {0.5, 0.4, 0.3, 0.6, 0.1, 0.05};
    const ExpertDecision decision =
        decide_experts(slots_with(6, {0, 2}), scores, demand_of(6, {0, 1, 3, 4, 5}), rates(1, 0));
    CHECK(!decision.compact);
    CHECK(decision.loads == std::vector<SlotLoad>({{1, 3}})); // worth more than what lies there; the rest is not
    CHECK(decision.in_slots == std::vector<uint32_t>({0, 3}));
    CHECK(decision.in_window == std::vector<uint32_t>({1, 4, 5}));
}

void test_whoever_is_quicker_gets_the_misses() {
    const std::vector<uint32_t> pairs = {1, 1, 1, 1};
    CHECK_EQ(n_to_upload(pairs, rates(100, 0), 64, true), size_t{4});             // never on the CPU
    CHECK_EQ(n_to_upload(pairs, rates(100, 10), 0, true), size_t{4});             // not in this step
    CHECK_EQ(n_to_upload(pairs, rates(100, 10), 64, true), size_t{0});            // all on the CPU: 40
    CHECK_EQ(n_to_upload(pairs, rates(100, 100), 64, true), size_t{2});           // half and half
    CHECK_EQ(n_to_upload(pairs, rates(100, 100, 0, 250), 64, true), size_t{3});   // 250 and 100 there, 300 here
    CHECK_EQ(n_to_upload(pairs, rates(100, 100, 0, 350), 64, true), size_t{4});   // not worth the way there
    CHECK_EQ(n_to_upload({1, 1, 8, 8}, rates(100, 10, 50), 64, true), size_t{3}); // many tokens: slow on the CPU
    CHECK_EQ(n_to_upload({1, 40, 40}, rates(100, 1), 64, true), size_t{2});       // no more pairs than allowed
    xlm_expert_policy parted = rates(100, 100);
    CHECK_EQ(n_to_upload({1, 1, 1}, parted, 64, true), size_t{2}); // 200 there, 100 here
    parted.cpu_part_ns = 150;
    CHECK_EQ(n_to_upload({1, 1, 1}, parted, 64, true), size_t{2}); // still: 200 there, 250 here, 300 alone
    CHECK_EQ(n_to_upload({1, 1}, parted, 64, true), size_t{2});    // 200: as long as the CPU alone
    parted.cpu_ns = 90;
    CHECK_EQ(n_to_upload({1, 1}, parted, 64, true), size_t{0});  // 180: the CPU alone
    CHECK_EQ(n_to_upload({1, 1}, parted, 64, false), size_t{2}); // 330 beside the device
}

void test_split_is_the_best_there_is() {
    std::mt19937 random(1);
    for (int i = 0; i < 2000; i++) {
        std::vector<uint32_t> pairs(random() % 9);
        for (uint32_t & n : pairs)
            n = 1 + random() % 4;
        const xlm_expert_policy policy = rates(1 + random() % 100, 1 + random() % 100, random() % 50, random() % 200);
        const auto cost = [&](size_t n) {
            uint64_t cpu = n < pairs.size() ? policy.cpu_fixed_ns : 0;
            for (size_t k = n; k < pairs.size(); k++)
                cpu += policy.cpu_ns + (pairs[k] - 1) * policy.cpu_token_ns;
            return std::max<uint64_t>(policy.upload_ns * n, cpu);
        };
        const size_t found = n_to_upload(pairs, policy, 64, true);
        for (size_t n = 0; n <= pairs.size(); n++)
            CHECK(cost(found) < cost(n) || (cost(found) == cost(n) && found >= n));
    }
}

void test_what_the_cpu_computes_may_be_fetched_for_later() {
    const std::vector<double> scores = {0.1, 0.2, 0.3, 0.9, 0.15};
    const auto decide = [&](const SlotMap & map, uint32_t behind) {
        ExpertDemand demand = demand_of(5, {3, 4}, 64, behind);
        demand.n_used = 1;
        return decide_experts(map, scores, demand, rates(1000, 1));
    };
    ExpertDecision decision = decide(slots_with(5, {0, 1, 2}), 1);
    CHECK(decision.on_cpu == std::vector<uint32_t>({3, 4}) && decision.loads.empty());
    CHECK(decision.behind == std::vector<SlotLoad>({{0, 3}}));
    decision = decide(slots_with(5, {0, 1, 2}), 2);
    CHECK_EQ(decision.behind.size(), size_t{1}); // 0.15 is not worth 0.2's slot
    CHECK(decide(slots_with(5, {0, 1, 2}), 0).behind.empty());
    CHECK(decide(slots_with(5, {0}), 2).behind.empty()); // the only slot stands in for what the CPU computes
}

// Whatever the state: every used expert is somewhere, exactly once, and nothing in use is overwritten.
void test_any_decision_is_sound() {
    std::mt19937 random(2);
    for (int i = 0; i < 20000; i++) {
        const uint32_t n = 1 + random() % 16, n_slots = random() % (n + 2);
        std::vector<double> scores(n);
        for (double & score : scores)
            score = random() % 5 / 4.0;
        std::vector<int32_t> held(n);
        std::iota(held.begin(), held.end(), 0);
        std::shuffle(held.begin(), held.end(), random);
        held.resize(n_slots, -1);
        for (int32_t & expert : held)
            if (random() % 4 == 0) expert = -1;
        const SlotMap map = slots_with(n, held);
        ExpertDemand demand;
        demand.n_used = 1 + random() % n;
        demand.pairs.resize(n);
        for (uint32_t & pairs : demand.pairs)
            pairs = random() % 2 ? random() % 4 : 0;
        demand.n_cpu_pairs_max = random() % 2 ? 8 : 0;
        demand.n_behind_max = random() % 3;
        const ExpertDecision decision =
            decide_experts(map, scores, demand, rates(random() % 10, random() % 10, random() % 3, random() % 9));
        std::vector<int> seen(n);
        for (const auto * list : {&decision.in_slots, &decision.in_window, &decision.on_cpu})
            for (uint32_t expert : *list)
                seen[expert]++;
        for (uint32_t expert = 0; expert < n; expert++)
            CHECK_EQ(seen[expert], demand.pairs[expert] > 0 ? 1 : 0);
        std::vector<uint8_t> written(n_slots);
        for (const auto * list : {&decision.loads, &decision.behind})
            for (const SlotLoad & load : *list) {
                CHECK(!written[load.slot]++);
                CHECK(map.slot_of(load.expert) < 0);
                const int32_t lost = map.expert_in(load.slot);
                CHECK(lost < 0 || demand.pairs[static_cast<size_t>(lost)] == 0);
            }
        CHECK_EQ(decision.in_slots.size(), decision.n_hits + decision.loads.size());
        CHECK(!decision.compact || (decision.in_window.empty() && n_slots >= demand.n_used + decision.behind.size()));
    }
}

void test_empty_slots_are_filled_with_the_best() {
    const SlotMap map = slots_with(5, {1, -1, -1, -1});
    CHECK(fill_empty(map, {0.2, 0.9, 0, 0.4, 0.3}, 2) == std::vector<SlotLoad>({{1, 3}, {2, 4}}));
    CHECK(fill_empty(map, {0, 0.9, 0, 0.4, 0}, 9) == std::vector<SlotLoad>({{1, 3}}));
    CHECK(fill_empty(map, {0, 0, 0, 0, 0}, 9).empty());
}

// A router with a favourite third, 8 of 64 experts a token, 16 slots: decayed frequency against least recently used.
void test_decayed_frequency_beats_least_recently_used() {
    constexpr uint32_t n = 64, n_used = 8, n_slots = 16;
    std::mt19937 random(3);
    std::vector<double> weights(n);
    for (uint32_t e = 0; e < n; e++)
        weights[e] = 1.0 / (1 + e);
    ExpertScores scores;
    scores.reset(n);
    SlotMap map;
    map.reset(n, n_slots);
    std::list<uint32_t> recent;
    uint64_t hits = 0, hits_lru = 0, asked = 0;
    for (int step = 0; step < 3000; step++) {
        std::vector<double> left = weights;
        std::vector<uint32_t> used;
        for (uint32_t k = 0; k < n_used; k++) {
            used.push_back(static_cast<uint32_t>(std::discrete_distribution<>(left.begin(), left.end())(random)));
            left[used.back()] = 0;
        }
        const ExpertDemand demand = demand_of(n, used);
        scores.note(demand.pairs, 1);
        const ExpertDecision decision = decide_experts(map, scores.values(), demand, rates(1, 0));
        for (const SlotLoad & load : decision.loads)
            map.assign(load.slot, load.expert);
        for (uint32_t expert : used)
            CHECK(map.slot_of(expert) >= 0);
        hits += decision.n_hits;
        for (uint32_t expert : used) {
            const auto at = std::find(recent.begin(), recent.end(), expert);
            hits_lru += at != recent.end();
            if (at != recent.end()) recent.erase(at);
            recent.push_front(expert);
        }
        while (recent.size() > n_slots)
            recent.pop_back();
        asked += n_used;
    }
    std::printf("  hit rate %.3f, least recently used %.3f\n", static_cast<double>(hits) / asked,
                static_cast<double>(hits_lru) / asked);
    CHECK(hits > hits_lru);
}

} // namespace

int main() {
    test_scores_are_shares_that_follow_the_text();
    test_slot_map();
    test_least_used_goes_first();
    test_empty_slots_before_any_eviction();
    test_more_than_the_slots_go_through_the_window();
    test_whoever_is_quicker_gets_the_misses();
    test_split_is_the_best_there_is();
    test_what_the_cpu_computes_may_be_fetched_for_later();
    test_any_decision_is_sound();
    test_empty_slots_are_filled_with_the_best();
    test_decayed_frequency_beats_least_recently_used();
    std::puts("ok");
}
