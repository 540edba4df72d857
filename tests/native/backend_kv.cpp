// Caches that go through the ring for each step: the bits of lasting copies, nothing kept on the device, and what a
// step wrote is at home when it ends.
#include "backend_cases.hpp"
#include "backend_storm.hpp"

using namespace toy;

namespace {

constexpr int kLayers = 3;
constexpr uint64_t kPlenty = 32 << 20;
constexpr uint64_t kLayerKvBytes = uint64_t{kCells} * kEmbd * (4 + 2);

struct Pair : toy::Pair {
    explicit Pair(uint32_t seed) : toy::Pair(seed, kLayers, false) {}
};

std::vector<uint8_t> uniform(uint8_t place) {
    return std::vector<uint8_t>(xlm_device_sublayer_count(), place);
}

std::vector<uint8_t> random_placement(std::mt19937 & random) {
    std::vector<uint8_t> placement(xlm_device_sublayer_count());
    for (uint8_t & value : placement)
        value = static_cast<uint8_t>(random() % 3 ? +XLM_PLACE_STREAM_KV : random() % 4);
    return placement;
}

void test_streamed() {
    Pair pair(1);
    std::mt19937 random(2);
    set_budget(kPlenty);
    set_placements(uniform(XLM_PLACE_STREAM_KV), 256 << 10);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    uint64_t n_steps = 0, n_tokens = 0;
    for (int n : {7, 1, 1, 12, 1}) {
        CHECK(pair.step(random, n));
        CHECK(pair.same_caches());
        CHECK_EQ(memory().kv_bytes, uint64_t{0});
        check_books();
        n_steps++, n_tokens += static_cast<uint64_t>(n);
    }
    const xlm_stats now = stats();
    CHECK_EQ(now.n_fallback_cpu, uint64_t{0});
    CHECK_EQ(now.bytes_kv_streamed, n_steps * kLayers * kLayerKvBytes);
    CHECK_EQ(now.bytes_kv_up, now.bytes_kv_streamed);
    CHECK_EQ(now.bytes_kv_written_back, n_tokens * kLayers * kEmbd * (4 + 2));
}

// From a ring that is as large as the caches of a layer on; below that they stay where they are, with the CPU.
void test_rings() {
    for (const uint64_t ring_bytes : {24 << 10, 25 << 10, 33 << 10, 40 << 10, 70 << 10, 200 << 10}) {
        Pair pair(3);
        std::mt19937 random(4);
        set_budget(kPlenty);
        set_placements(uniform(XLM_PLACE_STREAM_KV), ring_bytes);
        CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
        for (int n : {5, 1, 1, 9, 1})
            CHECK(pair.step(random, n));
        CHECK(pair.same_caches());
        CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
        check_books();
    }
    Pair pair(3);
    std::mt19937 random(4);
    set_placements(uniform(XLM_PLACE_STREAM_KV), 20 << 10);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    CHECK(pair.step(random, 2));
    CHECK_EQ(stats().n_fallback_cpu, uint64_t{kLayers});
    CHECK_EQ(stats().bytes_kv_streamed, uint64_t{0});
}

// A ring that went leaves nothing pointing into its memory.
void test_another_ring() {
    Pair pair(19);
    std::mt19937 random(20);
    for (int i = 0; i < 12; i++) {
        set_budget(i % 3 == 2 ? 0 : kPlenty);
        const uint8_t place = i % 2 ? XLM_PLACE_STREAM_KV : XLM_PLACE_CPU;
        set_placements(uniform(place), place == XLM_PLACE_CPU ? 0 : (128 << 10) + (i << 12));
        CHECK(pair.step(random, 1 + i % 2));
        CHECK(pair.same_caches());
        check_books();
    }
    set_budget(kPlenty);
    std::vector<uint8_t> mixed = uniform(XLM_PLACE_STREAM_KV);
    for (size_t i = 0; i < mixed.size(); i += 2)
        mixed[i] = XLM_PLACE_RESIDENT;
    for (const uint64_t ring_bytes : {128 << 10, 0, 90 << 10, 0, 40 << 10}) {
        set_placements(mixed, ring_bytes);
        CHECK(pair.step(random, 2));
        CHECK(pair.same_caches());
    }
}

void set_tiers(uint8_t one, uint8_t many, uint64_t ring_bytes) {
    set_two_tiers(1, uniform(one), uniform(many), ring_bytes);
}

// What a schedule no longer keeps goes; what another tier keeps is used where it is.
void test_switched() {
    Pair pair(5);
    std::mt19937 random(6);
    set_budget(kPlenty);
    for (int i = 0; i < 3; i++) {
        set_placements(uniform(i % 2 ? XLM_PLACE_STREAM : XLM_PLACE_RESIDENT), 128 << 10);
        CHECK(pair.step(random, 3));
        CHECK_EQ(memory().kv_bytes, kLayers * kLayerKvBytes);
        set_placements(uniform(XLM_PLACE_STREAM_KV), 128 << 10);
        for (int n : {1, 4, 1}) {
            CHECK(pair.step(random, n));
            CHECK_EQ(memory().kv_bytes, uint64_t{0});
        }
    }
    set_placements(uniform(XLM_PLACE_RESIDENT), 0);
    CHECK(pair.step(random, 3));
    CHECK_EQ(memory().kv_bytes, kLayers * kLayerKvBytes);
    set_placements(uniform(XLM_PLACE_CPU), 0);
    CHECK(pair.step(random, 1));
    CHECK_EQ(memory().kv_bytes, uint64_t{0}); // others have their room
    set_tiers(XLM_PLACE_CPU, XLM_PLACE_STREAM_KV, 128 << 10);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    for (int n : {4, 1, 1, 3, 1})
        CHECK(pair.step(random, n));
    CHECK_EQ(stats().bytes_kv_streamed, 2 * kLayers * kLayerKvBytes);
    set_tiers(XLM_PLACE_RESIDENT, XLM_PLACE_STREAM_KV, 128 << 10);
    for (int n : {1, 4, 1})
        CHECK(pair.step(random, n));
    CHECK_EQ(memory().kv_bytes, kLayers * kLayerKvBytes);
    CHECK(pair.same_caches());
    check_books();
}

// Keys that are changed in place, sessions that are put back: nothing of an earlier step is left in the ring.
void test_restored() {
    Pair pair(7);
    std::mt19937 random(8);
    set_budget(kPlenty);
    set_placements(uniform(XLM_PLACE_STREAM_KV), 1 << 20);
    for (int i = 0; i < 12; i++) {
        if (i % 3 == 2) set_placements(random_placement(random), 256 << 10);
        CHECK(pair.step(random, 2));
        if (i % 3 == 1) pair.plain.shift(), pair.device.shift();
        CHECK(pair.same_caches());
        if (i % 4 != 3) continue;
        const std::vector<char> saved = pair.plain.cache_bytes();
        const int n_past = pair.plain.n_past();
        CHECK(pair.step(random, 1));
        pair.plain.restore_cache(saved, n_past);
        pair.device.restore_cache(saved, n_past);
    }
}

// A step that was stopped leaves caches in the ring; the next one must not take them for its own.
void test_aborted() {
    Pair pair(9);
    std::mt19937 random(10);
    set_budget(kPlenty);
    set_placements(uniform(XLM_PLACE_STREAM_KV), 1 << 20);
    CHECK(pair.step(random, 3));
    std::atomic<bool> done{false};
    std::thread impatient([&] {
        while (!done)
            CHECK_EQ(xlm_device_abort_step(), XLM_OK);
    });
    std::vector<char> other = pair.plain.cache_bytes();
    for (int aborted = 0; aborted < 12;) {
        pair.device.restore_cache(other, 3);
        aborted += pair.device.step(some_tokens(random, 1)).empty();
    }
    done = true;
    impatient.join();
    for (size_t i = 0; i < other.size(); i += 2) // small F16 and F32 numbers stay small
        other[i] = static_cast<char>(other[i] ^ 1);
    pair.plain.restore_cache(other, 3);
    pair.device.restore_cache(other, 3);
    CHECK(pair.step(random, 1));
    CHECK(pair.same_caches());
}

// Two conversations with caches of their own, in turns.
void test_contexts() {
    Pair pair(11);
    Context plain(pair.plain_model), device(pair.model);
    std::mt19937 random(12);
    set_budget(kPlenty);
    set_placements(uniform(XLM_PLACE_STREAM_KV), 128 << 10);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    for (int i = 0; i < 8; i++) {
        CHECK(pair.step(random, 1 + i % 3));
        const std::vector<int32_t> tokens = some_tokens(random, 2);
        CHECK(same_bits(plain.step(tokens), device.step(tokens)));
    }
    CHECK(pair.same_caches());
    CHECK(plain.cache_bytes() == device.cache_bytes());
    CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
}

void test_reclaims() {
    Pair pair(13);
    std::mt19937 random(14);
    const Storm storm;
    for (int i = 0; i < 40; i++) {
        set_placements(i % 2 ? random_placement(random) : uniform(XLM_PLACE_STREAM_KV),
                       i % 4 < 2 ? 128 << 10 : 30 << 10);
        CHECK(pair.step(random, i % 6 == 0 ? 7 : 1));
    }
    CHECK(pair.same_caches());
}

void test_request_at_every_border() {
    Pair pair(15);
    std::mt19937 random(16);
    const Pester pester;
    for (const uint64_t ring_bytes : {128 << 10, 26 << 10}) {
        set_placements(uniform(XLM_PLACE_STREAM_KV), ring_bytes);
        for (int i = 0; i < 8; i++)
            CHECK(pair.step(random, i == 0 ? 7 : 1));
    }
    CHECK(pair.same_caches());
}

void test_lost_device_costs_no_token() {
    for (uint32_t after = 0; after < 16; after++) {
        Pair pair(17);
        std::mt19937 random(18 + after);
        set_budget(kPlenty);
        set_placements(uniform(XLM_PLACE_STREAM_KV), 64 << 10);
        CHECK(pair.step(random, 3));
        CHECK_EQ(Sim::get().lose_device(4 * after), XLM_OK);
        for (int i = 0; i < 5; i++)
            CHECK(pair.step(random, 1));
        CHECK(pair.same_caches());
        CHECK_EQ(Sim::get().restore_device(), XLM_OK);
        CHECK_EQ(xlm_device_recover(), XLM_OK);
        CHECK(pair.step(random, 1));
        check_books();
    }
}

constexpr Case kCases[] = {
    {"streamed", test_streamed},
    {"rings", test_rings},
    {"another_ring", test_another_ring},
    {"switched", test_switched},
    {"restored", test_restored},
    {"aborted", test_aborted},
    {"contexts", test_contexts},
    {"reclaims", test_reclaims},
    {"pestered", test_request_at_every_border},
    {"lost", test_lost_device_costs_no_token},
};

} // namespace

int main(int argc, char ** argv) {
    return run_cases(argc, argv, kCases);
}
