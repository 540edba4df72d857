// A toy model on XLM0 over the virtual GPU against the same model on the CPU: equal bits,
// whatever the placements and budgets, and never a byte above the budget.
#include "backend/core.hpp"
#include "backend_cases.hpp"
#include "backend_storm.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

using namespace toy;

namespace {

constexpr int kLayers = 3;
constexpr uint64_t kPlenty = 32 << 20;

struct Pair : toy::Pair {
    explicit Pair(uint32_t seed, bool tied = false) : toy::Pair(seed, kLayers, tied) {}
};

std::vector<uint8_t> random_placement(std::mt19937 & random) {
    std::vector<uint8_t> placement(xlm_device_sublayer_count());
    for (uint8_t & value : placement)
        value = static_cast<uint8_t>(random() % 4);
    return placement;
}

void test_sublayers_of_the_toy() {
    const Pair pair(1);
    CHECK_EQ(xlm_device_sublayer_count(), uint32_t{1 + 2 * kLayers + 2}); // small, layers, look-up and output
    uint64_t kv_bytes = 0;
    for (uint32_t i = 0; i < xlm_device_sublayer_count(); i++) {
        xlm_sublayer_info info{};
        info.struct_size = sizeof info;
        CHECK_EQ(xlm_device_sublayer(i, &info), XLM_OK);
        CHECK_EQ(info.index, i);
        CHECK(info.device_bytes >= info.host_bytes && info.largest_piece_bytes <= info.device_bytes);
        kv_bytes += info.kv_device_bytes;
    }
    CHECK_EQ(kv_bytes, uint64_t{kLayers * kCells * kEmbd * (4 + 2)});
    xlm_sublayer_info info{};
    info.struct_size = sizeof info;
    CHECK_EQ(xlm_device_sublayer(1000, &info), XLM_ERR_INVALID_ARGUMENT);
}

void test_every_uniform_placement() {
    for (const bool tied : {false, true}) {
        for (uint8_t place : {XLM_PLACE_CPU, XLM_PLACE_STREAM, XLM_PLACE_RESIDENT}) {
            Pair pair(2, tied);
            std::mt19937 random(5);
            set_budget(kPlenty);
            set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), place), 1 << 20);
            for (int n : {7, 1, 1, 12, 1}) {
                CHECK(pair.step(random, n));
                check_books();
            }
            CHECK(pair.same_caches());
            const xlm_memory now = memory();
            CHECK_EQ(now.ring_bytes > 0, place == XLM_PLACE_STREAM);
            CHECK_EQ(now.kv_bytes > 0, place != XLM_PLACE_CPU);
            CHECK_EQ(now.used_bytes == 0, place == XLM_PLACE_CPU);
        }
    }
    CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
}

void test_every_combination_of_two_layers_worth() {
    Pair pair(3);
    std::mt19937 random(6);
    set_budget(kPlenty);
    const uint32_t n = xlm_device_sublayer_count();
    for (int code = 0; code < 81; code++) { // attention and FFN of layers 1 and 2 in all ways, the rest at random
        std::vector<uint8_t> placement = random_placement(random);
        for (uint32_t i = 0, rest = static_cast<uint32_t>(code); i < 4 && i + 3 < n; i++, rest /= 3)
            placement[i + 3] = static_cast<uint8_t>(rest % 3);
        set_placements(placement, 256 << 10);
        CHECK(pair.step(random, code % 5 == 0 ? 4 : 1));
        check_books();
    }
    CHECK(pair.same_caches());
}

void test_random_budgets_and_schedules_between_steps() {
    Pair pair(4);
    std::mt19937 random(7);
    for (int i = 0; i < 150; i++) {
        const xlm_release release = set_budget(random() % (600 << 10));
        CHECK_EQ(release.device_used_bytes, release.used_bytes);
        if (i % 3 == 0) set_placements(random_placement(random), random() % (128 << 10), random() % (64 << 10));
        uint32_t more = 0;
        if (i % 4 == 0) CHECK_EQ(xlm_device_settle(random() % (64 << 10), &more), XLM_OK);
        CHECK(pair.step(random, i % 7 == 0 ? 6 : 1));
        check_books();
    }
    CHECK(pair.same_caches());
}

// Prompts, and steps cut up by a reclaim, take more scratch: it must not keep the last copies out for good.
void test_regrows_into_the_exact_budget() {
    Pair pair(21);
    std::mt19937 random(50);
    const std::vector<uint8_t> all(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT);
    set_budget(kPlenty);
    set_placements(all, 0);
    for (int i = 0; i < 2; i++)
        CHECK(pair.step(random, 1));
    const xlm_memory whole = memory();
    set_placements(all, 0, whole.scratch_bytes);
    for (int i = 0; i < 60; i++) {
        set_budget(i % 2 ? kPlenty : random() % whole.used_bytes);
        CHECK(pair.step(random, i % 2 ? 9 : 1));
        set_budget(whole.used_bytes);
        for (int j = 0; j < 3; j++) {
            uint32_t more = 0;
            CHECK(pair.step(random, 1));
            CHECK_EQ(xlm_device_settle(UINT64_MAX, &more), XLM_OK);
            check_books();
        }
        CHECK(pair.step(random, 1));
        CHECK_EQ(memory().used_bytes, whole.used_bytes);
    }
    CHECK(pair.same_caches());
}

void test_reclaim_from_another_thread() {
    Pair pair(5);
    set_budget(kPlenty);
    std::atomic<bool> done{false};
    std::thread game([&] {
        std::mt19937 random(8);
        while (!done) {
            const uint64_t bytes = random() % 2 ? random() % (600 << 10) : 0;
            const xlm_release release = set_budget(bytes);
            CHECK(release.used_bytes <= bytes);
            CHECK(Sim::get().counters().used_bytes <= bytes);
            if (random() % 8 == 0) set_placements(random_placement(random), random() % (128 << 10));
            std::this_thread::yield();
        }
    });
    std::mt19937 random(9);
    for (int i = 0; i < 600; i++)
        CHECK(pair.step(random, i % 10 == 0 ? 9 : 1));
    done = true;
    game.join();
    CHECK(pair.same_caches());
    CHECK_EQ(memory().over_budget_events, uint64_t{0});
}

// The step waits for the device when it is asked: by then it may have prepared a segment, and must not submit it.
// Asked between two waits, it may; ten times in a row that does not happen.
void test_nothing_more_is_queued_before_a_reclaim() {
    Model model(true, kLayers, 5);
    Context context(model);
    std::mt19937 random(8);
    const std::vector<uint8_t> all(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT);
    set_placements(all, 0);
    int n_prompt = 0;
    for (int i = 0; i < 10; i++) {
        set_budget(kPlenty);
        const uint64_t before = stats().n_segments_device;
        std::atomic<bool> done{false};
        std::thread speaker([&] {
            context.step(some_tokens(random, 1));
            done = true;
        });
        while (!done && stats().n_segments_device < before + 2)
            std::this_thread::yield();
        const uint64_t asked = stats().n_segments_device;
        set_budget(0);
        n_prompt += !done && stats().n_segments_device == asked;
        speaker.join();
    }
    CHECK(n_prompt > 0);
}

void test_failing_allocations_only_slow_down() {
    Pair pair(6);
    std::mt19937 random(10);
    set_budget(kPlenty);
    for (int i = 0; i < 60; i++) {
        CHECK_EQ(Sim::get().fail_allocations(random() % 6, 1 + random() % 5), XLM_OK);
        set_placements(random_placement(random), 128 << 10);
        CHECK(pair.step(random, i % 6 == 0 ? 5 : 1));
        check_books();
        if (i % 5 == 0) CHECK_EQ(xlm_device_trim(), XLM_OK);
    }
    CHECK_EQ(Sim::get().fail_allocations(0, 0), XLM_OK);
    CHECK(stats().n_fallback_cpu > 0);
}

void test_lost_device_costs_no_token() {
    for (uint32_t after = 0; after < 12; after++) {
        Pair pair(7);
        std::mt19937 random(11 + after);
        set_budget(kPlenty);
        set_placements(random_placement(random), 256 << 10);
        CHECK(pair.step(random, 3));
        CHECK_EQ(Sim::get().lose_device(after), XLM_OK);
        for (int i = 0; i < 6; i++)
            CHECK(pair.step(random, 1));
        CHECK(pair.same_caches());
        CHECK_EQ(Sim::get().restore_device(), XLM_OK);
        CHECK_EQ(xlm_device_recover(), XLM_OK);
        CHECK_EQ(stats().device_lost, 0U);
        set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
        CHECK(pair.step(random, 1));
        CHECK(memory().resident_bytes > 0);
        check_books();
    }
    Pair pair(8);
    std::mt19937 random(12);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
    CHECK_EQ(Sim::get().lose_device(0), XLM_OK);
    CHECK(pair.step(random, 2));
    CHECK_EQ(stats().device_lost, 1U);
    CHECK_EQ(memory().used_bytes, uint64_t{0});
    CHECK_EQ(xlm_device_recover(), XLM_ERR_DEVICE_LOST);
    CHECK_EQ(Sim::get().restore_device(), XLM_OK);
    CHECK_EQ(xlm_device_recover(), XLM_OK);
}

// Nobody looked while the device was away: what it holds now is not what it was given.
void test_a_loss_undone_unseen_costs_no_token() {
    for (uint32_t after = 0; after < 12; after++) {
        Pair pair(20);
        std::mt19937 random(40 + after);
        set_budget(kPlenty);
        set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
        CHECK(pair.step(random, 3));
        CHECK(memory().resident_bytes > 0);
        std::atomic<bool> done{false};
        std::thread driver([&] { // resets the card now and then, in mid-graph too
            while (!done) {
                CHECK_EQ(Sim::get().lose_device(after), XLM_OK);
                for (uint32_t i = 0; i < after && !done; i++)
                    std::this_thread::yield();
                CHECK_EQ(Sim::get().restore_device(), XLM_OK);
            }
        });
        for (int i = 0; i < 8; i++) {
            CHECK(pair.step(random, 1));
            xlm_device_recover();
        }
        done = true;
        driver.join();
        CHECK(pair.same_caches());
        CHECK_EQ(xlm_device_recover(), XLM_OK);
        CHECK_EQ(Sim::get().lose_device(0), XLM_OK); // between two steps
        CHECK_EQ(Sim::get().restore_device(), XLM_OK);
        CHECK(pair.step(random, 1));
        CHECK_EQ(stats().device_lost, 1U);
        CHECK(pair.same_caches());
        CHECK_EQ(xlm_device_recover(), XLM_OK);
        check_books();
    }
}

// Matrices that do not fit go through in parts, to the same bits; only a ring without room for 16 rows leaves them
// to the CPU.
void test_matrix_larger_than_the_ring() {
    for (uint64_t ring_bytes : {3 << 10, 5 << 10, 9 << 10, 15 << 10}) {
        Pair pair(9);
        std::mt19937 random(13);
        set_budget(kPlenty);
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_STREAM), ring_bytes);
        for (int n : {1, 1, 5, 1}) {
            CHECK(pair.step(random, n));
            check_books();
        }
        CHECK(pair.same_caches());
        CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
        CHECK(stats().n_pieces_streamed > uint64_t{4 * 7 * kLayers});
    }
    Pair pair(9);
    std::mt19937 random(13);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_STREAM), 2 << 10);
    CHECK(pair.step(random, 1));
    CHECK(stats().n_fallback_cpu > 0);
    check_books();
}

// What a schedule counts on is free, however long the steps before it were.
void test_scratch_of_longer_steps_makes_room() {
    Pair pair(16);
    std::mt19937 random(22);
    std::vector<uint8_t> mixed(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT);
    for (size_t i = 0; i < mixed.size(); i += 3)
        mixed[i] = XLM_PLACE_STREAM;
    set_budget(kPlenty);
    set_placements(mixed, 64 << 10);
    CHECK(pair.step(random, 1));
    const uint64_t exact_bytes = memory().used_bytes;
    set_budget(0);
    set_budget(exact_bytes);
    set_placements(std::vector<uint8_t>(mixed.size(), XLM_PLACE_STREAM), 64 << 10);
    CHECK(pair.step(random, 24));
    const uint64_t scratch_bytes = memory().scratch_bytes;
    CHECK(stats().scratch_need_prefill_bytes > 0);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    CHECK_EQ(stats().scratch_need_prefill_bytes, uint64_t{0}); // the next model has needs of its own
    set_placements(mixed, 64 << 10);
    CHECK(pair.step(random, 1));
    CHECK_EQ(stats().prefill_tokens_seen, uint64_t{0});
    check_books();
    CHECK(memory().scratch_bytes < scratch_bytes);
    CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
    CHECK(pair.same_caches());
}

// A game that asks for memory between any two parts: what is done stays done, and the step comes to its end.
void test_reclaims_between_the_parts_of_a_matrix() {
    Pair pair(15);
    std::atomic<bool> done{false};
    set_budget(kPlenty);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_STREAM), 5 << 10);
    std::thread game([&] {
        std::mt19937 random(20);
        while (!done) {
            CHECK(set_budget(random() % 4 ? kPlenty : random() % (600 << 10)).completed);
            std::this_thread::yield();
        }
    });
    std::mt19937 random(21);
    for (int i = 0; i < 24; i++)
        CHECK(pair.step(random, i % 6 == 0 ? 3 : 1));
    done = true;
    game.join();
    CHECK(pair.same_caches());
    CHECK_EQ(memory().over_budget_events, uint64_t{0});
    set_budget(kPlenty);
    CHECK(pair.step(random, 1));
}

// Every step comes to its end, with the same bits: no segment gives way more than once.
void test_storm_of_budgets() {
    for (const uint64_t ring_bytes : {128 << 10, 5 << 10}) { // in whole matrices, in parts
        Pair pair(30);
        std::mt19937 random(31);
        const Storm storm;
        for (int i = 0; i < 40; i++) {
            set_placements(i % 2 ? random_placement(random)
                                 : std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_STREAM),
                           ring_bytes);
            CHECK(pair.step(random, i % 6 == 0 ? 7 : 1));
        }
        CHECK(pair.same_caches());
    }
}

// As if all took longer than a reclaim may wait: as many segments as there can be.
void think_slow() {
    for (const uint32_t n_tokens : {1, 7})
        xlm::core().step_paces.of(n_tokens).learn(1, 1'000'000'000);
}

void test_request_at_every_border() {
    Pair pair(32);
    std::mt19937 random(33);
    const Pester pester;
    for (const uint64_t ring_bytes : {128 << 10, 5 << 10}) {
        for (const uint8_t place : {XLM_PLACE_RESIDENT, XLM_PLACE_STREAM}) {
            set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), place), ring_bytes);
            for (int i = 0; i < 5; i++)
                CHECK(pair.step(random, i == 0 ? 7 : 1));
        }
    }
    CHECK(pair.same_caches());
}

// A resident matrix that takes long gives way between two parts of it, and what was computed stays: its requests are
// served where each part ends, and the logits are those of the whole.
void test_slow_resident_matrix() {
    Pair pair(34);
    std::mt19937 random(35);
    set_budget(kPlenty);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
    CHECK(pair.step(random, 1));
    for (const int n : {1, 7, 1}) {
        think_slow();
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        CHECK(pair.step(random, n));
        CHECK(stats().n_segments_device >= uint64_t{2 * kLayers + 2}); // the output matrix is two
        check_books();
    }
    const Pester pester;
    for (int i = 0; i < 10; i++) {
        think_slow();
        CHECK(pair.step(random, i % 5 == 0 ? 7 : 1));
    }
    CHECK(pair.same_caches());
}

void test_slow_resident_matrix_in_a_storm() {
    Pair pair(36);
    std::mt19937 random(37);
    const Storm storm;
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 5 << 10);
    for (int i = 0; i < 60; i++) {
        think_slow();
        CHECK(pair.step(random, i % 6 == 0 ? 7 : 1));
    }
    CHECK(pair.same_caches());
}

// After a grow only the cells that the step touches are copied, however large the cache is.
void test_untouched_state_stays_home() {
    Pair pair(16);
    std::mt19937 random(22);
    set_budget(kPlenty);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
    CHECK(pair.step(random, 3));
    CHECK_EQ(xlm_device_trim(), XLM_OK);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    pair.plain.shift(); // reads and writes half of the keys and none of the values
    pair.device.shift();
    CHECK_EQ(stats().bytes_kv_up, uint64_t{kLayers * kCells / 2 * kEmbd * 4});
    CHECK(pair.same_caches());
    CHECK(pair.step(random, 1)); // reads all of it; a part is there already
    CHECK_EQ(stats().bytes_kv_up, uint64_t{kLayers * kCells * kEmbd * (4 + 2)});
    CHECK(pair.same_caches());
}

void test_state_written_in_place_and_restored() {
    Pair pair(10);
    std::mt19937 random(14);
    set_budget(kPlenty);
    for (int i = 0; i < 12; i++) {
        set_placements(random_placement(random), 256 << 10);
        CHECK(pair.step(random, 2));
        if (i % 3 == 1) pair.plain.shift(), pair.device.shift();
        CHECK(pair.same_caches());
        if (i % 4 == 3) { // a session is put back while copies of it lie on the device
            const std::vector<char> saved = pair.plain.cache_bytes();
            const int n_past = pair.plain.n_past();
            CHECK(pair.step(random, 1));
            pair.plain.restore_cache(saved, n_past);
            pair.device.restore_cache(saved, n_past);
        }
    }
}

void test_two_models_and_two_threads() {
    set_budget(kPlenty);
    Pair first(11);
    {
        Pair second(12, true);
        set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 256 << 10);
        const auto run = [](Pair & pair, uint32_t seed) {
            std::mt19937 random(seed);
            for (int i = 0; i < 30; i++)
                CHECK(pair.step(random, i % 9 == 0 ? 4 : 1));
        };
        std::thread other([&] { run(second, 15); });
        run(first, 16);
        other.join();
        CHECK(first.same_caches() && second.same_caches());
    }
    CHECK_EQ(xlm_device_sublayer_count(), uint32_t{1 + 2 * kLayers + 2}); // the second is gone, with its copies
    std::mt19937 random(17);
    CHECK(first.step(random, 1));
    check_books();
}

void test_abort_keeps_the_context_usable() {
    Pair pair(13);
    std::mt19937 random(18);
    set_placements(random_placement(random), 256 << 10);
    CHECK(pair.step(random, 3));
    std::atomic<bool> done{false};
    std::thread impatient([&] {
        while (!done)
            CHECK_EQ(xlm_device_abort_step(), XLM_OK);
    });
    int aborted = 0;
    while (aborted < 5) {
        const std::vector<char> saved = pair.device.cache_bytes();
        const int n_past = pair.device.n_past();
        const std::vector<int32_t> tokens = some_tokens(random, 1);
        if (pair.device.step(tokens).empty()) {
            CHECK_EQ(pair.device.status, GGML_STATUS_ABORTED);
            aborted++;
        }
        pair.device.restore_cache(saved, n_past);
    }
    done = true;
    impatient.join();
    CHECK(pair.step(random, 1));
}

void test_calls_out_of_order() {
    xlm_device_config config{};
    config.struct_size = sizeof config;
    config.inner = "none";
    CHECK_EQ(xlm_device_open(&config), XLM_ERR_STATE);
    CHECK_EQ(xlm_device_open(nullptr), XLM_ERR_STATE);
    CHECK_EQ(xlm_device_memory(nullptr), XLM_ERR_INVALID_ARGUMENT);
    xlm_stats unset{};
    CHECK_EQ(xlm_device_stats(&unset), XLM_ERR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_device_set_schedule(nullptr), XLM_ERR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_device_model_end(4711), XLM_ERR_STATE);
    CHECK_EQ(xlm_device_context_begin(4711), XLM_ERR_INVALID_ARGUMENT);
    CHECK(std::strlen(xlm_device_last_error()) > 0);
}

void test_closed_device() {
    xlm_device_close();
    xlm_device_close();
    CHECK_EQ(Sim::get().counters().used_bytes, uint64_t{0});
    CHECK_EQ(xlm_device_begin_step(1), XLM_ERR_STATE);
    xlm_device_config config{};
    config.struct_size = sizeof config;
    CHECK_EQ(xlm_device_open(&config), XLM_ERR_INVALID_ARGUMENT);
    config.inner = "sim";
    CHECK_EQ(xlm_device_open(&config), XLM_ERR_INVALID_ARGUMENT);
    config.inner_library = "/nowhere/libggml-none.so";
    CHECK_EQ(xlm_device_open(&config), XLM_ERR_NO_DEVICE);
    config.inner_library = XLM_SIM_LIBRARY;
    config.inner_index = 99;
    CHECK_EQ(xlm_device_open(&config), XLM_ERR_NO_DEVICE);
    open_device("none", 1 << 20);
    Pair pair(14);
    std::mt19937 random(19);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 1 << 20);
    CHECK(pair.step(random, 4));
    CHECK_EQ(memory().used_bytes, uint64_t{0});
    CHECK_EQ(xlm_device_recover(), XLM_ERR_NO_DEVICE);
}

} // namespace

int main(int argc, char ** argv) {
    constexpr Case cases[] = {
        {"sublayers", test_sublayers_of_the_toy},
        {"uniform", test_every_uniform_placement},
        {"combinations", test_every_combination_of_two_layers_worth},
        {"budgets", test_random_budgets_and_schedules_between_steps},
        {"regrow", test_regrows_into_the_exact_budget},
        {"reclaim", test_reclaim_from_another_thread},
        {"reclaim_first", test_nothing_more_is_queued_before_a_reclaim, 20'000'000},
        {"allocations", test_failing_allocations_only_slow_down},
        {"lost", test_lost_device_costs_no_token},
        {"lost_unseen", test_a_loss_undone_unseen_costs_no_token},
        {"large_matrix", test_matrix_larger_than_the_ring},
        {"long_steps", test_scratch_of_longer_steps_makes_room},
        {"parts", test_reclaims_between_the_parts_of_a_matrix},
        {"storm", test_storm_of_budgets},
        {"pestered", test_request_at_every_border},
        {"slow", test_slow_resident_matrix},
        {"slow_storm", test_slow_resident_matrix_in_a_storm},
        {"untouched", test_untouched_state_stays_home},
        {"state", test_state_written_in_place_and_restored},
        {"models", test_two_models_and_two_threads},
        {"abort", test_abort_keeps_the_context_usable},
        {"order", test_calls_out_of_order},
        {"closed", test_closed_device},
    };
    return run_cases(argc, argv, cases);
}
