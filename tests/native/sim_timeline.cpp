#include "sim/timeline.hpp"

#include "check.hpp"

using xlm::sim::Slot;
using xlm::sim::Timeline;

TEST(work_queues_one_after_the_other) {
    Timeline engine;
    CHECK_EQ(engine.reserve(100, 0, 50).end_ns, 150);
    const Slot second = engine.reserve(110, 0, 20);
    CHECK_EQ(second.start_ns, 150);
    CHECK_EQ(second.end_ns, 170);
}

TEST(work_waits_until_it_is_ready) {
    Timeline engine;
    const Slot slot = engine.reserve(100, 500, 10);
    CHECK_EQ(slot.start_ns, 500);
    CHECK_EQ(engine.horizon_ns(), 510);
}

TEST(ready_work_uses_a_gap_before_work_that_waits) {
    Timeline engine;
    engine.reserve(0, 1000, 100);
    CHECK_EQ(engine.reserve(0, 0, 300).end_ns, 300);
    CHECK_EQ(engine.reserve(0, 0, 700).end_ns, 1000);
    CHECK_EQ(engine.reserve(0, 0, 1).start_ns, 1100);
}

TEST(a_gap_too_short_is_passed_over) {
    Timeline engine;
    engine.reserve(0, 100, 100);
    CHECK_EQ(engine.reserve(0, 0, 101).start_ns, 200);
}

TEST(probe_takes_nothing) {
    Timeline engine;
    CHECK_EQ(engine.probe(0, 0, 10).end_ns, 10);
    CHECK_EQ(engine.reserve(0, 0, 10).end_ns, 10);
}

TEST(busy_time_survives_retiring) {
    Timeline engine;
    engine.reserve(0, 0, 100);
    engine.reserve(0, 200, 100);
    CHECK_EQ(engine.busy_before(250), 150);
    engine.reserve(1000, 0, 7); // retires both
    CHECK_EQ(engine.busy_before(1000), 200);
    CHECK_EQ(engine.busy_before(1007), 207);
}

TEST(empty_work_takes_no_time) {
    Timeline engine;
    engine.reserve(0, 0, 50);
    const Slot slot = engine.reserve(0, 0, 0);
    CHECK_EQ(slot.duration_ns(), 0);
    CHECK_EQ(engine.busy_before(1000), 50);
}

XLM_TEST_MAIN
