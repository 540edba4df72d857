#include "sim/link_engine.hpp"

#include "check.hpp"

using xlm::sim::link_chunk_bytes;
using xlm::sim::LinkEngine;
using xlm::sim::LinkModel;
using xlm::sim::small_copy_bytes;

namespace {

constexpr uint64_t big = 10'000'000;
constexpr uint64_t small = 2'000;

// 1 byte takes 1 ns.
LinkModel link(uint32_t arbitration, double latency_ns = 0) {
    return {1e9, latency_ns, arbitration};
}

} // namespace

TEST(duration_is_latency_plus_bytes_over_rate) {
    const LinkModel model{2e9, 500, XLM_SIM_FIFO};
    CHECK_EQ(model.duration_ns(1000), 1000);
    const LinkModel unthrottled{0, 500, XLM_SIM_FIFO};
    CHECK_EQ(unthrottled.duration_ns(1000), 0);
}

TEST(fifo_makes_small_copies_wait) {
    LinkEngine engine;
    CHECK_EQ(engine.reserve(link(XLM_SIM_FIFO), 0, 0, big).end_ns, 10'000'000);
    CHECK_EQ(engine.reserve(link(XLM_SIM_FIFO), 0, 0, small).end_ns, 10'002'000);
}

TEST(small_first_lets_small_copies_pass) {
    LinkEngine engine;
    engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, big);
    CHECK_EQ(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, small).end_ns, 2'000);
    CHECK_EQ(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, small).end_ns, 4'000);
}

TEST(small_first_charges_the_next_big_copy) {
    LinkEngine engine;
    engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, big);
    engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, small);
    CHECK_EQ(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, big).end_ns, 20'002'000);
    CHECK_EQ(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, big).end_ns, 30'002'000);
}

TEST(small_first_big_copy_gives_way_to_small_ones_already_there) {
    LinkEngine engine;
    engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, small);
    CHECK_EQ(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, big).end_ns, 10'002'000);
}

TEST(small_copies_on_an_idle_link_cost_big_ones_nothing) {
    LinkEngine engine;
    for (int i = 0; i < 100; i++)
        engine.reserve(link(XLM_SIM_SMALL_FIRST), i * 10'000, 0, small);
    CHECK_EQ(engine.reserve(link(XLM_SIM_SMALL_FIRST), 2'000'000, 0, big).end_ns, 12'000'000);
}

TEST(small_is_at_most_64_kib) {
    LinkEngine engine;
    engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, big);
    CHECK(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, small_copy_bytes + 1).end_ns > 10'000'000);
    CHECK(engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 0, small_copy_bytes).end_ns < 10'000'000);
}

TEST(chunked_waits_for_one_chunk_per_own_chunk) {
    LinkEngine engine;
    engine.reserve(link(XLM_SIM_CHUNKED), 0, 0, big);
    const auto chunk = static_cast<int64_t>(link_chunk_bytes);
    CHECK_EQ(engine.reserve(link(XLM_SIM_CHUNKED), 0, 0, small).end_ns, chunk + 2'000);
    // Two equal big copies share, then the rest of the traffic is due.
    CHECK_EQ(engine.reserve(link(XLM_SIM_CHUNKED), 0, 0, big).end_ns, 20'002'000);
}

TEST(busy_time_counts_every_byte_once) {
    for (const uint32_t arbitration : {XLM_SIM_FIFO, XLM_SIM_CHUNKED}) {
        LinkEngine engine;
        engine.reserve(link(arbitration), 0, 0, big);
        engine.reserve(link(arbitration), 0, 0, small);
        CHECK_EQ(engine.busy_before(100'000'000), 10'002'000);
    }
}

TEST(busy_is_now_not_later) {
    LinkEngine engine;
    engine.reserve(link(XLM_SIM_SMALL_FIRST), 0, 1'000, small);
    CHECK(!engine.busy_at(500));
    CHECK(engine.busy_at(1'500));
    CHECK(!engine.busy_at(3'000));
}

XLM_TEST_MAIN
