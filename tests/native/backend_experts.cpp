// Experts one by one: the same bits as the CPU for every form of mixture, whatever the number of slots, the
// budget, and who takes memory away meanwhile.
#include "backend_cases.hpp"
#include "backend_storm.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

using namespace toy;

namespace {

constexpr int kLayers = 2;
constexpr uint64_t kPlenty = 32 << 20;

struct Pair : toy::Pair {
    Pair(uint32_t seed, const Moe & form) : toy::Pair(seed, kLayers, false, form) {}
};

Moe plain_form() {
    Moe form;
    form.n_experts = 12;
    form.n_used = 3;
    return form;
}

std::vector<std::pair<const char *, Moe>> all_forms() {
    std::vector<std::pair<const char *, Moe>> forms;
    const auto add = [&](const char * name, const std::function<void(Moe &)> & change) {
        Moe form = plain_form();
        change(form);
        forms.emplace_back(name, form);
    };
    add("plain", [](Moe &) {});
    add("fused", [](Moe & form) { form.fused = true; });
    add("fused with biases", [](Moe & form) { form.fused = form.biases = true; });
    add("biases", [](Moe & form) { form.biases = true; });
    add("scales", [](Moe & form) { form.scales = true; });
    add("shared", [](Moe & form) { form.shared = true; });
    add("weight first", [](Moe & form) { form.weight_first = true; });
    add("no gate", [](Moe & form) { form.gate = false; });
    add("one used", [](Moe & form) { form.n_used = 1; });
    add("all used", [](Moe & form) { form.n_used = form.n_experts; });
    return forms;
}

enum class Misses { uploaded, on_cpu, shared };

xlm_expert_policy policy_of(uint32_t n_slots, Misses misses = Misses::uploaded) {
    // With a CPU that takes no time every miss is the CPU's; with one that takes as long as the link, some.
    const uint32_t cpu_ns = misses == Misses::shared ? 1000 : misses == Misses::on_cpu;
    return {sizeof(xlm_expert_policy), n_slots, 1000, cpu_ns, cpu_ns, 0, n_slots % 2, 0};
}

void schedule(const xlm_expert_policy & policy, uint64_t ring_bytes, uint8_t others = XLM_PLACE_RESIDENT,
              uint8_t experts = XLM_PLACE_STREAM, uint64_t reserve_bytes = 0) {
    std::vector<uint8_t> placement(xlm_device_sublayer_count(), others);
    for (uint32_t i = 0; i < placement.size(); i++) {
        xlm_sublayer_info info{};
        info.struct_size = sizeof info;
        CHECK_EQ(xlm_device_sublayer(i, &info), XLM_OK);
        if (info.kind == XLM_KIND_EXPERTS) placement[i] = experts;
    }
    const std::vector<xlm_expert_policy> policies(placement.size(), policy);
    set_placements(placement, ring_bytes, reserve_bytes, policies.data());
}

xlm_expert_info experts_of(uint32_t index, std::vector<float> * share = nullptr) {
    xlm_expert_info info{};
    info.struct_size = sizeof info;
    CHECK_EQ(xlm_device_experts(index, &info, share ? share->data() : nullptr,
                                share ? static_cast<uint32_t>(share->size()) : 0),
             XLM_OK);
    return info;
}

std::vector<xlm_sublayer_info> expert_sublayers() {
    std::vector<xlm_sublayer_info> result;
    for (uint32_t i = 0; i < xlm_device_sublayer_count(); i++) {
        xlm_sublayer_info info{};
        info.struct_size = sizeof info;
        CHECK_EQ(xlm_device_sublayer(i, &info), XLM_OK);
        if (info.kind == XLM_KIND_EXPERTS) result.push_back(info);
    }
    return result;
}

void check_books() {
    const xlm_memory now = memory();
    CHECK_EQ(now.used_bytes, Sim::get().counters().used_bytes);
    CHECK_EQ(now.used_bytes, now.resident_bytes + now.kv_bytes + now.ring_bytes + now.scratch_bytes);
    CHECK(now.expert_slot_bytes <= now.resident_bytes && now.expert_window_bytes <= now.ring_bytes);
    CHECK(now.used_bytes <= now.budget_bytes);
    CHECK_EQ(now.over_budget_events, uint64_t{0});
    CHECK_EQ(Sim::get().counters().n_frees_in_use, uint64_t{0});
    uint64_t slot_bytes = 0;
    for (const xlm_sublayer_info & sublayer : expert_sublayers())
        slot_bytes += experts_of(sublayer.index).slot_bytes;
    CHECK_EQ(slot_bytes, now.expert_slot_bytes);
}

void check_handled_by_expert(uint32_t n_slots) {
    for (const xlm_sublayer_info & sublayer : expert_sublayers()) {
        const xlm_expert_info info = experts_of(sublayer.index);
        CHECK_EQ(info.mode, static_cast<uint32_t>(n_slots > 0 ? XLM_EXPERTS_SLOTS : XLM_EXPERTS_WINDOW));
        CHECK_EQ(info.n_slots, n_slots);
        CHECK(info.n_slots_filled <= info.n_slots && info.n_steps > 0);
        CHECK(info.n_hits + info.n_misses >= info.n_steps * info.n_used);
    }
    CHECK_EQ(stats().expert_whole, uint64_t{0});
    CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
}

void test_every_form_and_number_of_slots() {
    for (const auto & [name, form] : all_forms()) {
        for (const uint32_t n_slots : {0U, 1U, 3U, 5U, 12U}) {
            for (const Misses misses : {Misses::uploaded, Misses::on_cpu, Misses::shared}) {
                std::printf("  %s, %u slots, misses %d\n", name, n_slots, static_cast<int>(misses));
                Pair pair(1, form);
                std::mt19937 random(n_slots + 1);
                set_budget(kPlenty);
                CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
                schedule(policy_of(n_slots, misses), 256 << 10);
                for (int n : {1, 1, 7, 1, 20, 1, 1, 2}) {
                    CHECK(pair.step(random, n));
                    check_books();
                }
                CHECK(pair.same_caches());
                check_handled_by_expert(n_slots);
                CHECK(misses == Misses::shared || (stats().expert_cpu > 0) == (misses == Misses::on_cpu));
            }
        }
    }
}

void test_slots_save_traffic() {
    Pair pair(2, plain_form());
    std::mt19937 random(3);
    set_budget(kPlenty);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    schedule(policy_of(12), 256 << 10);
    for (int i = 0; i < 60; i++)
        CHECK(pair.step(random, 1));
    check_handled_by_expert(12);
    const xlm_stats now = stats();
    for (const xlm_sublayer_info & sublayer : expert_sublayers()) {
        std::vector<float> share(sublayer.n_experts);
        const xlm_expert_info info = experts_of(sublayer.index, &share);
        // All experts fit: each is uploaded once, and a miss is an upload.
        CHECK_EQ(info.bytes_uploaded, info.n_misses * sublayer.expert_bytes);
        CHECK_EQ(info.n_misses, static_cast<uint64_t>(info.n_slots_filled));
        CHECK_EQ(info.n_steps, uint64_t{60});
        CHECK_EQ(info.bytes_uploaded + info.bytes_saved, info.n_steps * sublayer.host_bytes);
        float sum = 0;
        for (float value : share)
            sum += value;
        CHECK(std::fabs(sum - 3.0F) < 1e-3F);
    }
    CHECK_EQ(now.expert_hits + now.expert_misses, uint64_t{60 * 3 * kLayers});
    CHECK_EQ(now.bytes_streamed, uint64_t{0}); // nothing went through the ring
}

void test_prefill_moves_each_used_expert_once() {
    Pair pair(4, plain_form());
    std::mt19937 random(5);
    set_budget(kPlenty);
    for (const uint32_t n_slots : {0U, 4U}) {
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        schedule(policy_of(n_slots), 256 << 10);
        CHECK(pair.step(random, 24));
        const xlm_stats now = stats();
        const uint64_t each = expert_sublayers().front().expert_bytes;
        CHECK_EQ(now.expert_bytes_uploaded, now.expert_misses * each);
        CHECK(now.expert_misses <= uint64_t{12 * kLayers} && now.expert_passes > 0);
        check_books();
    }
}

uint32_t kind_of(int32_t sublayer) {
    xlm_sublayer_info info{};
    info.struct_size = sizeof info;
    CHECK_EQ(xlm_device_sublayer(static_cast<uint32_t>(sublayer), &info), XLM_OK);
    return info.kind;
}

// Of a sub-layer each, of the last of four steps.
std::vector<xlm_trace_event> traced_step(Pair & pair, std::mt19937 & random) {
    for (int i = 0; i < 3; i++)
        CHECK(pair.step(random, 1));
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    CHECK_EQ(xlm_device_trace(4096), XLM_OK);
    CHECK(pair.step(random, 1));
    uint64_t lost = 0;
    std::vector<xlm_trace_event> events = read_trace(4096, lost);
    CHECK_EQ(lost, uint64_t{0});
    CHECK_EQ(xlm_device_trace(0), XLM_OK);
    const auto end =
        std::remove_if(events.begin(), events.end(), [](const auto & event) { return event.sublayer < 0; });
    return {events.begin(), end};
}

// Other weights stream too: none of theirs is queued between a layer's attention and its experts. And of small copies,
// each of which takes its time, there are the router's ids and the places of what is uploaded; no more.
void test_experts_wait_for_no_other_weights() {
    Pair pair(51, plain_form());
    std::mt19937 random(52);
    set_budget(kPlenty);
    schedule(policy_of(0), 256 << 10, XLM_PLACE_STREAM);
    bool near = false;
    int n_experts = 0, n_others = 0, n_down = 0, n_up = 0;
    for (const xlm_trace_event & event : traced_step(pair, random)) {
        const bool experts = kind_of(event.sublayer) == XLM_KIND_EXPERTS;
        near |= event.kind == XLM_TRACE_DEVICE && kind_of(event.sublayer) == XLM_KIND_ATTENTION;
        near &= !(event.kind == XLM_TRACE_UPLOAD && experts);
        n_experts += event.kind == XLM_TRACE_UPLOAD && experts;
        n_others += event.kind == XLM_TRACE_UPLOAD && !experts;
        CHECK(!(near && event.kind == XLM_TRACE_UPLOAD));
        n_down += event.kind == XLM_TRACE_COPY_DOWN && experts;
        n_up += event.kind == XLM_TRACE_COPY_UP && experts;
    }
    CHECK(n_experts > 0 && n_others > 0);
    CHECK_EQ(n_down, kLayers);
    CHECK_EQ(n_up, kLayers);
}

// What a layer costs whose experts are all the CPU's: the ids and the input come to the host, the CPU computes once,
// the result goes up in one copy, and the device computes nothing of it. Rows of caches let the ids pass.
void test_all_on_the_cpu_is_one_piece() {
    Pair pair(53, plain_form());
    std::mt19937 random(54);
    set_budget(kPlenty);
    schedule(policy_of(0, Misses::on_cpu), 256 << 10);
    bool ids_wanted = false;
    int n_down = 0, n_up = 0, n_cpu = 0, n_rows = 0;
    for (const xlm_trace_event & event : traced_step(pair, random)) {
        const bool experts = kind_of(event.sublayer) == XLM_KIND_EXPERTS;
        n_down += event.kind == XLM_TRACE_COPY_DOWN && experts && n_up < kLayers; // behind that, the step's output
        n_up += event.kind == XLM_TRACE_COPY_UP && experts;
        n_cpu += event.kind == XLM_TRACE_CPU && experts;
        n_rows += event.kind == XLM_TRACE_WRITE_BACK;
        CHECK(!(ids_wanted && event.kind == XLM_TRACE_WRITE_BACK));
        ids_wanted |= event.kind == XLM_TRACE_DEVICE && n_up < kLayers;
        ids_wanted &= event.kind != XLM_TRACE_COPY_DOWN;
    }
    CHECK(n_rows > 0 && n_down == 2 * kLayers);
    CHECK(n_up == kLayers && n_cpu == kLayers);
    CHECK_EQ(stats().expert_passes, uint64_t{0});
    CHECK_EQ(stats().expert_cpu, uint64_t{3 * kLayers});
    CHECK(pair.same_caches());
}

// Where device and CPU share a layer, the CPU computes once too, however often the window is full before.
void test_the_cpus_share_is_one_piece() {
    Moe form = plain_form();
    form.n_used = form.n_experts;
    Pair pair(55, form);
    std::mt19937 random(56);
    set_budget(kPlenty);
    schedule(policy_of(0, Misses::shared), 64 << 10);
    int n_cpu = 0, n_uploads = 0;
    for (const xlm_trace_event & event : traced_step(pair, random)) {
        if (kind_of(event.sublayer) != XLM_KIND_EXPERTS) continue;
        n_cpu += event.kind == XLM_TRACE_CPU;
        n_uploads += event.kind == XLM_TRACE_UPLOAD;
    }
    CHECK_EQ(stats().expert_cpu, uint64_t{6 * kLayers});
    CHECK(n_uploads > 8 * kLayers); // the window has four parts
    CHECK_EQ(n_cpu, kLayers);
    CHECK(pair.same_caches());
}

void test_resident_streamed_and_whole_give_the_same() {
    for (const uint8_t place : {XLM_PLACE_CPU, XLM_PLACE_STREAM, XLM_PLACE_RESIDENT}) {
        Pair pair(6, plain_form());
        std::mt19937 random(7);
        set_budget(kPlenty);
        schedule(policy_of(0), 1 << 20, XLM_PLACE_RESIDENT, place);
        for (int n : {9, 1, 1})
            CHECK(pair.step(random, n));
        const uint32_t mode = experts_of(expert_sublayers().front().index).mode;
        CHECK_EQ(mode, static_cast<uint32_t>(place == XLM_PLACE_CPU      ? XLM_EXPERTS_CPU
                                             : place == XLM_PLACE_STREAM ? XLM_EXPERTS_WINDOW
                                                                         : XLM_EXPERTS_RESIDENT));
        check_books();
    }
}

void test_no_memory_for_slots_or_window() {
    Pair pair(8, plain_form());
    std::mt19937 random(9);
    set_budget(kPlenty);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    schedule(policy_of(0), 4 << 10); // not even two experts
    for (int n : {5, 1})
        CHECK(pair.step(random, n));
    const xlm_expert_info info = experts_of(expert_sublayers().front().index);
    CHECK_EQ(info.mode, static_cast<uint32_t>(XLM_EXPERTS_WHOLE_WINDOW));
    CHECK(stats().expert_whole > 0 && stats().n_fallback_cpu > 0);
    check_books();
}

void test_another_form_of_graph_is_handled_as_a_whole() {
    Moe form = plain_form();
    form.two_sets = true;
    Pair pair(49, form);
    std::mt19937 random(50);
    set_budget(kPlenty);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    schedule(policy_of(4), 1 << 20);
    for (int n : {6, 1, 1}) {
        CHECK(pair.step(random, n));
        check_books();
    }
    for (const xlm_sublayer_info & sublayer : expert_sublayers())
        CHECK_EQ(experts_of(sublayer.index).mode, static_cast<uint32_t>(XLM_EXPERTS_WHOLE_GRAPH));
    CHECK(stats().expert_whole > 0 && stats().n_pieces_streamed > 0 && stats().expert_steps == 0);
    CHECK_EQ(memory().expert_slot_bytes, uint64_t{0});
}

void test_slots_shrink_and_grow_with_the_budget() {
    Pair pair(10, plain_form());
    std::mt19937 random(11);
    set_budget(kPlenty);
    schedule(policy_of(12), 64 << 10);
    for (int i = 0; i < 20; i++)
        CHECK(pair.step(random, 1));
    const uint64_t all = memory().used_bytes, slots = memory().expert_slot_bytes;
    CHECK(slots > 0);
    set_budget(0);
    CHECK_EQ(memory().expert_slot_bytes, uint64_t{0});
    CHECK(pair.step(random, 1));
    set_budget(all - slots / 2);
    for (int i = 0; i < 10; i++)
        CHECK(pair.step(random, 1));
    CHECK(memory().expert_slot_bytes > 0 && memory().expert_slot_bytes < slots);
    check_books();
    set_budget(kPlenty);
    for (int i = 0; i < 10; i++)
        CHECK(pair.step(random, 1));
    CHECK_EQ(memory().expert_slot_bytes, slots);
    check_books();
}

void test_window_follows_the_schedule() {
    Pair pair(53, plain_form());
    std::mt19937 random(54);
    set_budget(kPlenty);
    uint64_t last = 0;
    for (const uint64_t ring_bytes : {64 << 10, 256 << 10}) {
        schedule(policy_of(0), ring_bytes);
        CHECK(pair.step(random, 1));
        CHECK(memory().expert_window_bytes > 2 * last);
        last = memory().expert_window_bytes;
        check_books();
    }
    schedule(policy_of(0), 64 << 10);
    CHECK(pair.step(random, 1));
    CHECK(memory().expert_window_bytes > 0 && memory().expert_window_bytes < last / 2);
}

void test_settle_fills_slots_again() {
    Pair pair(12, plain_form());
    std::mt19937 random(13);
    set_budget(kPlenty);
    schedule(policy_of(8), 64 << 10);
    for (int i = 0; i < 40; i++)
        CHECK(pair.step(random, 1));
    set_budget(0);
    CHECK_EQ(experts_of(expert_sublayers().front().index).n_slots, 0U);
    set_budget(kPlenty);
    uint32_t more = 1;
    for (int i = 0; more && i < 1000; i++)
        CHECK_EQ(xlm_device_settle(1, &more), XLM_OK);
    CHECK_EQ(more, 0U);
    for (const xlm_sublayer_info & sublayer : expert_sublayers())
        CHECK(experts_of(sublayer.index).n_slots_filled >= 3);
    CHECK(pair.step(random, 1));
    check_books();
}

void random_schedule(std::mt19937 & random) {
    const uint8_t others = static_cast<uint8_t>(random() % 3), experts = static_cast<uint8_t>(random() % 3);
    schedule(policy_of(random() % 14, static_cast<Misses>(random() % 3)), random() % (192 << 10), others, experts,
             random() % 3 == 0 ? random() % (64 << 10) : 0);
}

void test_random_budgets_and_slots() {
    uint32_t seed = 14;
    for (const auto & [name, form] : all_forms()) {
        std::printf("  %s\n", name);
        Pair pair(seed, form);
        std::mt19937 random(seed++);
        for (int i = 0; i < 40; i++) {
            set_budget(random() % 4 == 0 ? kPlenty : random() % (800 << 10));
            if (i % 3 == 0) random_schedule(random);
            uint32_t more = 0;
            if (i % 4 == 0) CHECK_EQ(xlm_device_settle(random() % (64 << 10), &more), XLM_OK);
            CHECK(pair.step(random, i % 5 == 0 ? 11 : 1));
            check_books();
        }
        CHECK(pair.same_caches());
    }
}

void test_reclaim_from_another_thread() {
    Moe form = plain_form();
    form.fused = form.shared = true;
    Pair pair(30, form);
    set_budget(kPlenty);
    std::atomic<bool> done{false};
    std::thread game([&] {
        std::mt19937 random(31);
        while (!done) {
            const uint64_t bytes = random() % 3 == 0 ? 0 : random() % (900 << 10);
            const xlm_release release = set_budget(bytes);
            CHECK(release.used_bytes <= bytes);
            CHECK(Sim::get().counters().used_bytes <= bytes);
            if (random() % 8 == 0) random_schedule(random);
            (void)stats();
            (void)experts_of(2);
            std::this_thread::yield();
        }
    });
    std::mt19937 random(32);
    for (int i = 0; i < 300; i++)
        CHECK(pair.step(random, i % 5 == 0 ? 16 : 1));
    done = true;
    game.join();
    CHECK(pair.same_caches());
    CHECK_EQ(memory().over_budget_events, uint64_t{0});
}

void test_storm_of_budgets() {
    Pair pair(36, plain_form());
    std::mt19937 random(37);
    const Storm storm;
    for (int i = 0; i < 60; i++) {
        random_schedule(random);
        CHECK(pair.step(random, i % 5 == 0 ? 16 : 1));
    }
    CHECK(pair.same_caches());
}

void test_request_at_every_border() {
    Pair pair(38, plain_form());
    std::mt19937 random(39);
    const Pester pester;
    for (int i = 0; i < 20; i++) {
        random_schedule(random);
        CHECK(pair.step(random, i % 5 == 0 ? 16 : 1));
    }
    CHECK(pair.same_caches());
}

void test_failing_allocations_only_slow_down() {
    Pair pair(33, plain_form());
    std::mt19937 random(34);
    set_budget(kPlenty);
    for (int i = 0; i < 60; i++) {
        CHECK_EQ(Sim::get().fail_allocations(random() % 6, 1 + random() % 5), XLM_OK);
        random_schedule(random);
        CHECK(pair.step(random, i % 4 == 0 ? 9 : 1));
        check_books();
        if (i % 5 == 0) CHECK_EQ(xlm_device_trim(), XLM_OK);
    }
    CHECK_EQ(Sim::get().fail_allocations(0, 0), XLM_OK);
}

void test_lost_device_costs_no_token() {
    for (uint32_t after = 0; after < 24; after++) {
        Pair pair(35, plain_form());
        std::mt19937 random(36 + after);
        set_budget(kPlenty);
        schedule(policy_of(after % 6, static_cast<Misses>(after % 3)), 128 << 10);
        CHECK(pair.step(random, 3));
        CHECK_EQ(Sim::get().lose_device(after), XLM_OK);
        for (int i = 0; i < 4; i++)
            CHECK(pair.step(random, i == 1 ? 8 : 1));
        CHECK(pair.same_caches());
        CHECK_EQ(Sim::get().restore_device(), XLM_OK);
        CHECK_EQ(xlm_device_recover(), XLM_OK);
        CHECK(pair.step(random, 1));
        check_books();
    }
}

void test_abort_keeps_the_context_usable() {
    Pair pair(40, plain_form());
    std::mt19937 random(41);
    set_budget(kPlenty);
    schedule(policy_of(4, Misses::on_cpu), 128 << 10);
    CHECK(pair.step(random, 3));
    std::atomic<bool> done{false};
    std::thread impatient([&] {
        while (!done)
            CHECK_EQ(xlm_device_abort_step(), XLM_OK);
    });
    for (int aborted = 0; aborted < 5;) {
        const std::vector<char> saved = pair.device.cache_bytes();
        const int n_past = pair.device.n_past();
        if (pair.device.step(some_tokens(random, aborted % 2 ? 8 : 1)).empty()) {
            CHECK_EQ(pair.device.status, GGML_STATUS_ABORTED);
            aborted++;
        }
        pair.device.restore_cache(saved, n_past);
    }
    done = true;
    impatient.join();
    CHECK(pair.step(random, 1));
}

void test_two_models_share_the_device() {
    set_budget(kPlenty);
    Pair first(42, plain_form());
    {
        Moe form = plain_form();
        form.n_experts = 7;
        form.biases = true;
        Pair second(43, form);
        schedule(policy_of(5), 128 << 10);
        const auto run = [](Pair & pair, uint32_t seed) {
            std::mt19937 random(seed);
            for (int i = 0; i < 20; i++)
                CHECK(pair.step(random, i % 6 == 0 ? 6 : 1));
        };
        std::thread other([&] { run(second, 44); });
        run(first, 45);
        other.join();
        CHECK(first.same_caches() && second.same_caches());
    }
    std::mt19937 random(46);
    CHECK(first.step(random, 1));
    check_books();
}

void test_bad_calls() {
    Pair pair(47, plain_form());
    xlm_expert_info info{};
    info.struct_size = sizeof info;
    CHECK_EQ(xlm_device_experts(1000, &info, nullptr, 0), XLM_ERR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_device_experts(0, nullptr, nullptr, 0), XLM_ERR_INVALID_ARGUMENT);
    CHECK_EQ(experts_of(0).n_experts, 0U); // the small group has none
    const std::vector<uint8_t> placement(xlm_device_sublayer_count(), XLM_PLACE_STREAM);
    const xlm_tier_schedule tier{sizeof(xlm_tier_schedule), UINT32_MAX, placement.data(), 0, 0};
    std::vector<xlm_expert_policy> policies(placement.size(), policy_of(3));
    xlm_schedule schedule{sizeof(xlm_schedule),
                          1,
                          &tier,
                          static_cast<uint32_t>(placement.size()),
                          nullptr,
                          0,
                          0,
                          7,
                          policies.data(),
                          0,
                          0,
                          0,
                          nullptr,
                          0};
    policies.front().struct_size = 4;
    CHECK_EQ(xlm_device_set_schedule(&schedule), XLM_ERR_INVALID_ARGUMENT);
    policies.front().struct_size = sizeof(xlm_expert_policy);
    policies.back().struct_size = 1000;
    CHECK_EQ(xlm_device_set_schedule(&schedule), XLM_ERR_INVALID_ARGUMENT);
    schedule.struct_size = offsetof(xlm_schedule, experts); // a caller of before
    CHECK_EQ(xlm_device_set_schedule(&schedule), XLM_OK);
    std::mt19937 random(48);
    CHECK(pair.step(random, 2));
}

} // namespace

int main(int argc, char ** argv) {
    constexpr Case cases[] = {
        {"forms", test_every_form_and_number_of_slots},
        {"traffic", test_slots_save_traffic},
        {"prefill", test_prefill_moves_each_used_expert_once},
        {"order", test_experts_wait_for_no_other_weights},
        {"all_on_cpu", test_all_on_the_cpu_is_one_piece},
        {"shared", test_the_cpus_share_is_one_piece},
        {"placements", test_resident_streamed_and_whole_give_the_same},
        {"no_memory", test_no_memory_for_slots_or_window},
        {"other_form", test_another_form_of_graph_is_handled_as_a_whole},
        {"resize", test_slots_shrink_and_grow_with_the_budget},
        {"window", test_window_follows_the_schedule},
        {"settle", test_settle_fills_slots_again},
        {"budgets", test_random_budgets_and_slots},
        {"reclaim", test_reclaim_from_another_thread},
        {"storm", test_storm_of_budgets},
        {"pestered", test_request_at_every_border},
        {"allocations", test_failing_allocations_only_slow_down},
        {"lost", test_lost_device_costs_no_token},
        {"abort", test_abort_keeps_the_context_usable},
        {"models", test_two_models_share_the_device},
        {"bad_calls", test_bad_calls},
    };
    return run_cases(argc, argv, cases);
}
