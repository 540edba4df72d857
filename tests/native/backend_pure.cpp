// The parts of the backend that touch no device.
#include "backend_check.hpp"

#include "backend/ahead.hpp"
#include "backend/cache.hpp"
#include "backend/classify.hpp"
#include "backend/errors.hpp"
#include "backend/gate.hpp"
#include "backend/ledger.hpp"
#include "backend/lending.hpp"
#include "backend/pace.hpp"
#include "backend/range_set.hpp"
#include "backend/rests.hpp"
#include "backend/ring_alloc.hpp"
#include "backend/schedule.hpp"
#include "backend/scratch_plan.hpp"
#include "backend/submitted.hpp"

#include <atomic>
#include <cmath>
#include <random>
#include <thread>

using namespace xlm;

namespace {

void expect_class(const char * name, const char * tower, int32_t layer, xlm_sublayer_kind kind) {
    const TensorClass cls = classify_weight(name);
    if (cls.tower == tower && cls.layer == layer && cls.kind == kind) return;
    std::fprintf(stderr, "%s: tower '%s', layer %d, kind %d\n", name, cls.tower.c_str(), cls.layer, cls.kind);
    std::exit(1);
}

void test_classes() {
    expect_class("token_embd.weight", "", -1, XLM_KIND_LOOKUP);
    expect_class("token_embd_norm.weight", "", -1, XLM_KIND_SMALL);
    expect_class("per_layer_token_embd.weight", "", -1, XLM_KIND_LOOKUP);
    expect_class("per_layer_model_proj.weight", "", -1, XLM_KIND_EXTRAS);
    expect_class("output.weight", "", -1, XLM_KIND_OUTPUT);
    expect_class("output_norm.weight", "", -1, XLM_KIND_SMALL);
    expect_class("cls.output.weight", "", -1, XLM_KIND_OUTPUT);
    expect_class("rope_freqs.weight", "", -1, XLM_KIND_SMALL);
    expect_class("blk.0.attn_q.weight", "", 0, XLM_KIND_ATTENTION);
    expect_class("blk.0.attn_q.bias", "", 0, XLM_KIND_SMALL);
    expect_class("blk.31.attn_sinks.weight", "", 31, XLM_KIND_SMALL);
    expect_class("blk.7.ssm_conv1d.weight", "", 7, XLM_KIND_ATTENTION);
    expect_class("blk.7.time_mix_key.weight", "", 7, XLM_KIND_ATTENTION);
    expect_class("blk.7.shortconv.in_proj.weight", "", 7, XLM_KIND_ATTENTION);
    expect_class("blk.7.indexer.attn_k.weight", "", 7, XLM_KIND_ATTENTION);
    expect_class("blk.12.ffn_gate.weight", "", 12, XLM_KIND_FFN);
    expect_class("blk.12.channel_mix_value.weight", "", 12, XLM_KIND_FFN);
    expect_class("blk.12.ffn_gate_inp.weight", "", 12, XLM_KIND_SMALL);
    expect_class("blk.12.ffn_gate_inp_shexp.weight", "", 12, XLM_KIND_SMALL);
    expect_class("blk.12.ffn_gate_exps.weight", "", 12, XLM_KIND_EXPERTS);
    expect_class("blk.12.ffn_gate_up_exps.weight", "", 12, XLM_KIND_EXPERTS);
    expect_class("blk.12.ffn_down_exps.scale", "", 12, XLM_KIND_SMALL);
    expect_class("blk.12.ffn_down_chexps.weight", "", 12, XLM_KIND_EXPERTS);
    expect_class("blk.12.ffn_up_shexp.weight", "", 12, XLM_KIND_SHARED_EXPERTS);
    expect_class("blk.12.ffn_gate_tid2eid.weight", "", 12, XLM_KIND_LOOKUP);
    expect_class("blk.12.exp_probs_b.bias", "", 12, XLM_KIND_SMALL);
    expect_class("blk.5.altup_router.weight", "", 5, XLM_KIND_EXTRAS);
    expect_class("blk.5.laurel_l.weight", "", 5, XLM_KIND_EXTRAS);
    expect_class("blk.5.laurel_post_norm.weight", "", 5, XLM_KIND_SMALL);
    expect_class("blk.5.nextn.eh_proj.weight", "", 5, XLM_KIND_OUTPUT);
    expect_class("blk.5.nextn.embed_tokens.weight", "", 5, XLM_KIND_LOOKUP);
    expect_class("v.blk.3.attn_out.weight", "v.", 3, XLM_KIND_ATTENTION);
    expect_class("v.blk.3.ffn_up.weight", "v.", 3, XLM_KIND_FFN);
    expect_class("v.blk.3.ln1.weight", "v.", 3, XLM_KIND_SMALL);
    expect_class("dec.blk.2.cross_attn_k.weight", "dec.", 2, XLM_KIND_ATTENTION);
    expect_class("v.post_ln.weight", "v.", -1, XLM_KIND_SMALL);
    expect_class("v.patch_embd.weight", "v.", -1, XLM_KIND_PROJECTOR);
    expect_class("v.patch_embd.bias", "v.", -1, XLM_KIND_SMALL);
    expect_class("v.position_embd.weight", "v.", -1, XLM_KIND_PROJECTOR);
    expect_class("mm.2.weight", "mm.", -1, XLM_KIND_PROJECTOR);
    expect_class("mm.2.bias", "mm.", -1, XLM_KIND_SMALL);
    expect_class("mm.soft_emb_norm.weight", "mm.", -1, XLM_KIND_SMALL);
    expect_class("resampler.query", "resampler.", -1, XLM_KIND_PROJECTOR);
    expect_class("blk.4.some_future_thing.weight", "", 4, XLM_KIND_FFN);
    expect_class("", "", -1, XLM_KIND_OUTPUT);
    expect_class("blk.", "", -1, XLM_KIND_OUTPUT);
    expect_class("blk.x.attn_q.weight", "", -1, XLM_KIND_OUTPUT);
    CHECK_EQ(state_layer("cache_k_l17"), 17);
    CHECK_EQ(state_layer("cache_s_l0 (view)"), 0);
    CHECK_EQ(state_layer("mystery"), -1);
    CHECK(is_token_embedding("token_embd.weight") && !is_token_embedding("v.token_embd.img_end"));
}

void test_ranges_join_and_cover() {
    RangeSet set;
    set.add({10, 20});
    set.add({30, 40});
    set.add({20, 30}); // touches both
    CHECK_EQ(set.ranges().size(), size_t{1});
    CHECK(set.ranges()[0] == (ByteRange{10, 40}));
    set.add({5, 5});
    CHECK_EQ(set.ranges().size(), size_t{1});
    set.clear();
    std::mt19937 random(1);
    std::vector<uint8_t> bytes(4096, 0);
    for (int i = 0; i < 500; i++) {
        const size_t begin = random() % 4000, end = begin + random() % 30;
        set.add({begin, end});
        for (size_t b = begin; b < end; b++)
            bytes[b] = 1;
        CHECK(set.ranges().size() <= RangeSet::kMaxRanges);
        size_t last = 0;
        std::vector<uint8_t> covered(4096, 0);
        for (const ByteRange & range : set.ranges()) {
            CHECK(range.begin >= last && range.begin < range.end);
            last = range.end + 1; // neighbours that touch are joined
            for (size_t b = range.begin; b < range.end; b++)
                covered[b] = 1;
        }
        for (size_t b = 0; b < bytes.size(); b++)
            CHECK(!bytes[b] || covered[b]);
    }
}

// What is taken is exactly what was in both; only a set that would hold too many ranges gives more away.
void test_taken_ranges_leave_the_set() {
    std::mt19937 random(4);
    for (int round = 0; round < 300; round++) {
        RangeSet set, wanted;
        std::vector<int> have(600, 0), want(600, 0), left(600, 0), got(600, 0);
        const auto mark = [](const RangeSet & from, std::vector<int> & bytes) {
            for (const ByteRange & range : from.ranges())
                std::fill(bytes.begin() + static_cast<long>(range.begin), bytes.begin() + static_cast<long>(range.end),
                          1);
        };
        for (int i = 0; i < 20; i++) {
            const size_t a = random() % 580, b = random() % 580;
            set.add({a, a + random() % 20});
            wanted.add({b, b + random() % 20});
        }
        mark(set, have);
        mark(wanted, want);
        mark(set.take(wanted), got);
        mark(set, left);
        for (size_t i = 0; i < have.size(); i++) {
            CHECK_EQ(got[i], have[i] && want[i]);
            CHECK_EQ(left[i], have[i] && !want[i]);
        }
    }
    RangeSet full, holes;
    for (size_t i = 0; i < RangeSet::kMaxRanges; i++)
        full.add({i * 10, i * 10 + 9});
    holes.add({4, 5});
    CHECK(full.take(holes).ranges()[0] == (ByteRange{0, 9}));
    CHECK(full.take(holes).empty());
    CHECK_EQ(full.ranges().size(), RangeSet::kMaxRanges - 1);
}

void test_pace_follows_what_it_is_told() {
    Pace pace;
    CHECK_EQ(pace.predict_ns(1000), uint64_t{0});
    CHECK_EQ(pace.cost_within(1000), UINT64_MAX);
    pace.learn(0, 5);
    pace.learn(100, 200);
    CHECK_EQ(pace.predict_ns(50), uint64_t{100});
    CHECK_EQ(pace.cost_within(100), uint64_t{50});
    for (int i = 0; i < 200; i++)
        pace.learn(100, 800);
    CHECK(pace.predict_ns(100) >= 790 && pace.predict_ns(100) <= 800);
    Pace guess(2.0);
    CHECK_EQ(guess.predict_ns(10), uint64_t{20});
    guess.learn(10, 10); // what was measured replaces a guess
    CHECK_EQ(guess.predict_ns(10), uint64_t{10});
    StepPaces paces;
    CHECK(&paces.of(0) == &paces.of(1) && &paces.of(2) == &paces.of(3) && &paces.of(1) != &paces.of(2));
    CHECK(&paces.of(UINT32_MAX) == &paces.of(1U << 31));
}

void test_ledger_refuses_a_byte_too_much() {
    Ledger ledger;
    CHECK(!ledger.try_reserve(Purpose::ring, 1));
    ledger.set_budget(100);
    CHECK(ledger.try_reserve(Purpose::resident, 60));
    CHECK(!ledger.try_reserve(Purpose::kv, 41));
    CHECK(!ledger.try_reserve(Purpose::kv, UINT64_MAX));
    CHECK(ledger.try_reserve(Purpose::kv, 40));
    ledger.set_budget(50);
    CHECK(ledger.over_budget());
    CHECK(!ledger.try_reserve(Purpose::scratch, 1));
    ledger.release(Purpose::resident, 60);
    CHECK(!ledger.over_budget());
    CHECK_EQ(ledger.view().of(Purpose::kv), uint64_t{40});
    CHECK_EQ(ledger.view().peak_bytes, uint64_t{100});
}

void test_ranges_in_parts() {
    RangeSet set;
    set.add({10, 20});
    set.add({30, 35});
    set.add({50, 60});
    CHECK_EQ(set.bytes(), size_t{25});
    CHECK(set.part(0, 25) == set.ranges());
    CHECK((set.part(4, 8) == std::vector<ByteRange>{{14, 20}, {30, 32}}));
    CHECK((set.part(15, 3) == std::vector<ByteRange>{{50, 53}}));
    CHECK(set.part(25, 9).empty() && set.part(3, 0).empty());
    for (size_t size = 1; size < 26; size++) { // parts of any size are the whole
        RangeSet seen;
        for (size_t at = 0; at < 25; at += size)
            for (const ByteRange & range : set.part(at, size))
                seen.add(range);
        CHECK(seen.ranges() == set.ranges());
    }
}

// A pace of one byte a ns. What has had its time on the link, and what is waited for, takes no room any more.
void test_ahead_counts_what_is_on_its_way() {
    constexpr uint64_t slice = Ahead::kLeastSlice, most = 8 * slice;
    const Pace pace(1.0);
    Ahead ahead;
    ahead.begin(pace, most, false);
    CHECK_EQ(ahead.bytes_now(3, 1000), uint64_t{3});
    CHECK_EQ(ahead.bytes_now(20 * slice, 1000), most);
    ahead.queued(6 * slice, 1000);
    CHECK_EQ(ahead.free_at_ns(), 1000 + 6 * slice);
    CHECK_EQ(ahead.bytes_now(20 * slice, 1000), 2 * slice);
    CHECK_EQ(ahead.bytes_now(20 * slice, 1000 + slice), 3 * slice);
    CHECK_EQ(ahead.bytes_now(20 * slice, 1000 + slice / 2), 2 * slice); // no crumbs
    CHECK_EQ(ahead.bytes_now(20 * slice, 1000 + 6 * slice), most);
    ahead.queued(2 * slice, 1000);
    CHECK_EQ(ahead.bytes_now(slice, 1000), uint64_t{0});
    ahead.needed();
    CHECK_EQ(ahead.bytes_now(20 * slice, 1000), most); // behind what somebody waits for
    ahead.queued(most, 1000);
    CHECK_EQ(ahead.room_ns(1000), uint64_t{0});
    ahead.arrived(1000 + slice); // the first eight came as fast as one was thought to
    CHECK_EQ(ahead.free_at_ns(), 1000 + 9 * slice);
    ahead.arrived(1000 + 2 * slice);
    CHECK_EQ(ahead.free_at_ns(), 1000 + 9 * slice);
}

void test_ahead_held_back() {
    constexpr uint64_t slice = Ahead::kLeastSlice;
    const Pace pace(1.0);
    Ahead ahead;
    ahead.begin(pace, 8 * slice, true);
    CHECK_EQ(ahead.bytes_now(slice, 0), uint64_t{0});
    ahead.grant(5 * slice, false, 0);
    CHECK_EQ(ahead.bytes_now(20 * slice, 0), 5 * slice);
    ahead.queued(3 * slice, 0);
    CHECK_EQ(ahead.bytes_now(20 * slice, 0), 2 * slice);
    ahead.grant(100 * slice, false, 0); // never more than a reclaim may wait for
    CHECK_EQ(ahead.bytes_now(20 * slice, 0), 5 * slice);
    ahead.grant(12 * slice, true, 0); // but for what it waits for anyway
    CHECK_EQ(ahead.bytes_now(20 * slice, 0), 8 * slice);
    ahead.queued(8 * slice, 0);
    CHECK_EQ(ahead.bytes_now(20 * slice, 0), 4 * slice);
    ahead.queued(4 * slice, 0);
    CHECK_EQ(ahead.room_ns(0), uint64_t{0});
    ahead.hold(true);
    CHECK_EQ(ahead.room_ns(100 * slice), uint64_t{0});
    ahead.hold(false);
    CHECK_EQ(ahead.bytes_now(20 * slice, 100 * slice), 8 * slice);
}

void test_lull_is_what_lasts_at_least() {
    Lull lull;
    CHECK_EQ(lull.ns(), uint64_t{0});
    lull.learn(800);
    CHECK_EQ(lull.ns(), uint64_t{800});
    lull.learn(8800); // somebody else had the CPU
    CHECK_EQ(lull.ns(), uint64_t{1800});
    lull.learn(500);
    CHECK_EQ(lull.ns(), uint64_t{500});
    lull.learn(0);
    lull.learn(8);
    CHECK_EQ(lull.ns(), uint64_t{1});
}

void test_lending_waits_for_small_steps() {
    Lending lending;
    const auto now = [&] { return lending.reserve_bytes(200, 1000); };
    CHECK_EQ(now(), uint64_t{1000});
    for (uint64_t i = 0; i < Lending::kBefore; i++) {
        lending.note_step(200, 1000);
        CHECK_EQ(now(), uint64_t{1000});
    }
    for (int i = 0; i < 3; i++) {
        lending.note_step(200, 1000);
        CHECK_EQ(now(), uint64_t{200});
    }
    CHECK_EQ(lending.reserve_bytes(1000, 1000), uint64_t{1000}); // a tier that needs all of it
    CHECK_EQ(lending.reserve_bytes(300, 500), uint64_t{300});    // another schedule takes over
    lending.note_step(1000, 1000);
    CHECK_EQ(now(), uint64_t{1000});
    lending.note_step(200, 1000);
    CHECK_EQ(now(), uint64_t{1000});
}

void test_ring_never_overlaps() {
    std::mt19937 random(2);
    RingAllocator ring(1000);
    CHECK(!ring.allocate(1001));
    CHECK(!ring.allocate(0));
    std::deque<RingSpan> live;
    int placed = 0;
    for (int i = 0; i < 20000; i++) {
        if (const auto span = ring.allocate(1 + random() % 400)) {
            CHECK(span->offset + span->bytes <= 1000);
            for (const RingSpan & other : live)
                CHECK(!overlaps(*span, other));
            live.push_back(*span);
            placed++;
        } else {
            CHECK(!live.empty()); // an empty ring takes anything that fits
            live.pop_front();
            ring.pop_front();
        }
    }
    CHECK(placed > 5000);
}

void test_scratch_shares_only_dead_bytes() {
    std::mt19937 random(3);
    for (int round = 0; round < 200; round++) {
        std::vector<ScratchItem> items(60);
        uint64_t sum = 0;
        for (ScratchItem & item : items) {
            item.bytes = random() % 5000;
            item.first = static_cast<int>(random() % 100) - 5;
            item.last = item.first + static_cast<int>(random() % 20);
            sum += item.bytes + 256;
        }
        const ScratchLayout layout = plan_scratch(items, 256);
        CHECK(layout.peak_bytes <= sum);
        for (size_t a = 0; a < items.size(); a++) {
            if (items[a].first < 0) continue;
            CHECK_EQ(layout.offsets[a] % 256, uint64_t{0});
            CHECK(layout.offsets[a] + items[a].bytes <= layout.peak_bytes);
            for (size_t b = 0; b < a; b++) {
                if (items[b].first < 0) continue;
                const bool meet = items[a].first <= items[b].last && items[b].first <= items[a].last;
                CHECK(!meet || !overlaps({layout.offsets[a], items[a].bytes}, {layout.offsets[b], items[b].bytes}));
            }
        }
    }
}

void test_eviction_order() {
    SubLayer small, low, high, unranked;
    small.kind = XLM_KIND_SMALL;
    low.rank = 5;
    high.rank = 1;
    std::vector<SubLayer *> order{&small, &high, &unranked, &low};
    sort_for_eviction(order);
    CHECK(order[0] == &unranked && order[1] == &low && order[2] == &high && order[3] == &small);
}

bool schedule_refused(const xlm_schedule & source, uint32_t n) {
    try {
        read_schedule(source, n);
    } catch (const ApiError & error) {
        CHECK_EQ(error.status, XLM_ERR_INVALID_ARGUMENT);
        return true;
    }
    return false;
}

void test_schedule_is_checked() {
    const uint8_t placement[3] = {0, 1, 2}, wrong[3] = {0, 1, 4};
    xlm_tier_schedule tiers[2] = {{sizeof(xlm_tier_schedule), 1, placement, 0, 0},
                                  {sizeof(xlm_tier_schedule), 64, placement, 0, 0}};
    const uint32_t order[3] = {2, 0, 1}, twice[3] = {2, 2, 1};
    xlm_schedule source{sizeof(xlm_schedule), 2, tiers, 3, order, 0, 0, 9, nullptr, 0, 0, 0, nullptr, 0};
    const Schedule schedule = read_schedule(source, 3);
    CHECK_EQ(schedule.id, uint64_t{9});
    CHECK_EQ(schedule.tier_for(1), 0U);
    CHECK_EQ(schedule.tier_for(2), 1U);
    CHECK_EQ(schedule.tier_for(100000), 1U);
    CHECK(schedule_refused(source, 4));
    CHECK(!schedule.lends());
    source.reserve_bytes = 100;
    tiers[0].reserve_bytes = 30;
    const Schedule lends = read_schedule(source, 3);
    CHECK(lends.lends());
    CHECK_EQ(lends.reserve_of(0), uint64_t{30});
    CHECK_EQ(lends.reserve_of(1), uint64_t{100});
    tiers[0].reserve_bytes = 200; // never more than all of it
    CHECK(!read_schedule(source, 3).lends());
    CHECK_EQ(read_schedule(source, 3).reserve_of(0), uint64_t{100});
    tiers[0].reserve_bytes = 0;
    source.priority = twice;
    CHECK(schedule_refused(source, 3));
    source.priority = nullptr;
    tiers[1].max_tokens = 1;
    CHECK(schedule_refused(source, 3));
    tiers[1].max_tokens = 64;
    tiers[1].placement = wrong;
    CHECK(schedule_refused(source, 3));
    source.n_tiers = 0;
    CHECK(schedule_refused(source, 3));
}

// No request is lost, whoever holds the gate, and nobody is inside twice.
void test_gate_serves_every_request() {
    std::atomic<int> inside{0}, served{0};
    Gate gate([&] {
        CHECK_EQ(inside.fetch_add(1), 0);
        served++;
        inside--;
    });
    std::atomic<bool> done{false};
    std::thread holder([&] {
        while (!done) {
            const GateGuard guard(gate);
            CHECK_EQ(inside.fetch_add(1), 0);
            inside--;
            if (gate.requested()) gate.serve_requests();
            const GateWindow window(gate);
        }
    });
    for (int i = 0; i < 2000; i++)
        CHECK(gate.request(std::chrono::minutes(5)));
    done = true;
    holder.join();
    CHECK(served > 0);
}

// Who asks again before the last request is served keeps nobody at a border, and none of it is left behind.
void test_gate_comes_to_an_end_of_requests() {
    int served = 0;
    bool met = false;
    Gate * asked = nullptr;
    Gate gate(
        [&] {
            served++;
            CHECK(!asked->request(std::chrono::nanoseconds(0)));
        },
        [&] { return met; });
    asked = &gate;
    const GateGuard guard(gate);
    CHECK(!gate.request(std::chrono::nanoseconds(0)));
    gate.serve_requests();
    CHECK_EQ(served, 1);
    CHECK(gate.requested()); // the one that came meanwhile: the budget is not known to be met
    met = true;
    gate.serve_requests();
    CHECK_EQ(served, 2);
    CHECK(!gate.requested());
}

// However quickly requests follow each other: who waits for the gate gets it.
void test_gate_is_had_among_requests() {
    Gate gate([] {}, [] { return true; });
    std::atomic<bool> done{false};
    std::vector<std::thread> games;
    for (int i = 0; i < 3; i++)
        games.emplace_back([&] {
            while (!done)
                CHECK(gate.request(std::chrono::minutes(5)));
        });
    for (int i = 0; i < 2000; i++) {
        const GateGuard guard(gate);
        const GateWindow window(gate);
    }
    done = true;
    for (std::thread & game : games)
        game.join();
}

void test_rests_for_what_was_computed() {
    constexpr uint64_t ms = 1'000'000;
    Rests rests;
    rests.begin(0);
    CHECK(!rests.slow());
    CHECK_EQ(rests.due_ns(30 * ms), 30 * ms);
    rests.set(0.25, 100 * ms);
    CHECK(rests.slow());
    CHECK_EQ(rests.due_ns(4 * ms), 16 * ms); // 4 of 16
    CHECK_EQ(rests.due_ns(Rests::least_busy_ns - 1), Rests::least_busy_ns - 1);
    rests.rested(4 * ms, 16 * ms);
    CHECK_EQ(rests.due_ns(18 * ms), 24 * ms);
    rests.rested(18 * ms, 24 * ms);
    CHECK_EQ(rests.due_ns(124 * ms), 124 * ms + 82 * ms); // of 100 in all, 18 are over
    rests.rested(124 * ms, 206 * ms);
    CHECK_EQ(rests.due_ns(300 * ms), 300 * ms);
    rests.begin(300 * ms);
    CHECK(rests.due_ns(310 * ms) > 310 * ms);
    for (const double nonsense : {0.0, -1.0, 1.0, 2.0, std::nan("")}) {
        rests.set(nonsense, 100 * ms);
        CHECK(!rests.slow());
    }
}

// Also one that is about to begin.
void test_a_reclaim_and_a_wake_end_a_rest() {
    std::atomic<int> served{0};
    Gate gate([&] { served++; });
    std::atomic<bool> over{false}, resting{false};
    std::thread holder([&] {
        const GateGuard guard(gate);
        resting = true;
        gate.rest(std::chrono::minutes(5), [&] { return false; });
        gate.serve_requests();
        gate.rest(std::chrono::minutes(5), [&] { return over.load(); });
    });
    while (!resting)
        std::this_thread::yield();
    CHECK(gate.request(std::chrono::minutes(5)));
    CHECK_EQ(served.load(), 1);
    over = true;
    gate.wake();
    holder.join();
}

// A device may look at what it was given until it was waited for: ours are changed and gone by then.
void test_a_submitted_graph_stays_as_it_was() {
    int there = 0, elsewhere = 0;
    ggml_tensor weight{}, input{}, product{}, view{}, sum{};
    weight.data = input.data = product.data = view.data = sum.data = &there;
    product.op = GGML_OP_MUL_MAT, view.op = GGML_OP_VIEW, sum.op = GGML_OP_ADD;
    product.src[0] = &weight, product.src[1] = &input;
    view.src[0] = view.view_src = &product;
    sum.src[0] = &view, sum.src[1] = &input;
    ggml_tensor * nodes[] = {&product, &view, &sum};
    ggml_bitset_t used[1] = {0};
    ggml_tensor * keys[16] = {};
    int32_t uses[16] = {};
    ggml_cgraph graph{};
    graph.nodes = nodes, graph.n_nodes = graph.size = 3;
    graph.visited_hash_set = {16, used, keys}, graph.use_counts = uses;
    uses[ggml_hash_find_or_insert(&graph.visited_hash_set, &product)] = 7;
    Submitted submitted;
    const ggml_cgraph * kept = submitted.keep(graph);
    for (ggml_tensor * tensor : {&weight, &input, &product, &view, &sum})
        *tensor = {}, tensor->data = &elsewhere;
    CHECK_EQ(kept->n_nodes, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(kept->nodes[i] != nodes[i]);
        CHECK(kept->nodes[i]->data == &there);
    }
    const ggml_tensor *a = kept->nodes[0], *b = kept->nodes[1], *c = kept->nodes[2];
    CHECK(b->src[0] == a && b->view_src == a && c->src[0] == b);
    CHECK(a->src[1] == c->src[1] && a->src[1] != &input && a->src[1]->data == &there);
    CHECK(a->src[0] != &weight && a->src[0]->data == &there);
    CHECK_EQ(ggml_node_get_use_count(kept, 0), 7);
    CHECK_EQ(ggml_node_get_use_count(kept, 2), 0);
    CHECK(submitted.keep(graph)->nodes[0] != a);
    submitted.release();
    CHECK_EQ(submitted.bytes(), 0u);
    CHECK(submitted.keep(graph) == kept); // by their addresses some devices know graphs again
}

} // namespace

int main() {
    test_classes();
    test_ranges_join_and_cover();
    test_taken_ranges_leave_the_set();
    test_pace_follows_what_it_is_told();
    test_ledger_refuses_a_byte_too_much();
    test_ranges_in_parts();
    test_ahead_counts_what_is_on_its_way();
    test_ahead_held_back();
    test_lull_is_what_lasts_at_least();
    test_lending_waits_for_small_steps();
    test_ring_never_overlaps();
    test_scratch_shares_only_dead_bytes();
    test_eviction_order();
    test_schedule_is_checked();
    test_gate_serves_every_request();
    test_gate_comes_to_an_end_of_requests();
    test_gate_is_had_among_requests();
    test_rests_for_what_was_computed();
    test_a_reclaim_and_a_wake_end_a_rest();
    test_a_submitted_graph_stays_as_it_was();
    std::puts("ok");
}
