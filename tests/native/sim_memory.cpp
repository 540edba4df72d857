#include "sim/memory.hpp"
#include "sim/page_pool.hpp"

#include "check.hpp"

using xlm::sim::DeviceMemory;
using xlm::sim::PagePool;

TEST(the_cap_is_hard) {
    DeviceMemory memory;
    memory.set_cap(1000);
    void * first = memory.allocate(600);
    CHECK(first);
    CHECK(!memory.allocate(401));
    void * second = memory.allocate(400);
    CHECK(second);
    CHECK_EQ(memory.use().used_bytes, 1000u);
    CHECK_EQ(memory.use().free_bytes(), 0u);
    CHECK_EQ(memory.use().n_alloc, 2u);
    CHECK_EQ(memory.use().n_alloc_failed, 1u);
    memory.release(first);
    memory.release(second);
    CHECK_EQ(memory.use().used_bytes, 0u);
    CHECK_EQ(memory.use().peak_bytes, 1000u);
}

TEST(foreign_bytes_count_against_the_cap) {
    DeviceMemory memory;
    memory.set_cap(1000);
    memory.set_foreign(700);
    CHECK_EQ(memory.use().free_bytes(), 300u);
    CHECK(!memory.allocate(301));
    memory.set_foreign(5000);
    CHECK_EQ(memory.use().free_bytes(), 0u);
    memory.set_foreign(UINT64_MAX);
    CHECK_EQ(memory.use().free_bytes(), 0u);
    memory.set_foreign(0);
    CHECK_EQ(memory.use().free_bytes(), 1000u);
}

TEST(the_cap_does_not_shrink_below_what_is_used) {
    DeviceMemory memory;
    memory.set_cap(1000);
    void * block = memory.allocate(500);
    CHECK(!memory.set_cap(499));
    CHECK_EQ(memory.use().cap_bytes, 1000u);
    CHECK(memory.set_cap(500));
    memory.release(block);
}

TEST(injected_failures_come_after_the_skipped_ones) {
    DeviceMemory memory;
    memory.set_cap(1000);
    memory.fail_allocations(1, 2);
    void * passes = memory.allocate(10);
    CHECK(passes);
    CHECK(!memory.allocate(10));
    CHECK(!memory.allocate(10));
    void * again = memory.allocate(10);
    CHECK(again);
    memory.fail_allocations(0, 5);
    memory.fail_allocations(0, 0);
    void * cleared = memory.allocate(10);
    CHECK(cleared);
    for (void * block : {passes, again, cleared})
        memory.release(block);
    CHECK_EQ(memory.use().n_alloc_failed, 2u);
}

TEST(wiped_memory_reads_as_zero) {
    DeviceMemory memory;
    memory.set_cap(1 << 20);
    auto * block = static_cast<unsigned char *>(memory.allocate(10000));
    REQUIRE(block);
    CHECK_EQ(int(block[9999]), 0);
    block[9999] = 7;
    memory.wipe();
    CHECK_EQ(int(block[9999]), 0);
    memory.release(block);
}

TEST(nothing_and_unknown_blocks_are_handled) {
    DeviceMemory memory;
    memory.set_cap(1000);
    CHECK(!memory.allocate(0));
    int local = 0;
    memory.release(&local);
    memory.zero(&local);
    CHECK_EQ(memory.use().used_bytes, 0u);
}

TEST(reset_keeps_what_is_used) {
    DeviceMemory memory;
    memory.set_cap(1000);
    void * a = memory.allocate(300);
    void * b = memory.allocate(300);
    memory.release(b);
    memory.reset_counters();
    CHECK_EQ(memory.use().used_bytes, 300u);
    CHECK_EQ(memory.use().peak_bytes, 300u);
    CHECK_EQ(memory.use().n_alloc, 0u);
    memory.release(a);
}

TEST(freed_pages_are_given_to_the_next_allocation_of_their_size) {
    PagePool pool(std::chrono::hours(1));
    auto * pages = static_cast<unsigned char *>(pool.take(8192));
    REQUIRE(pages);
    pages[8191] = 7;
    pool.give(pages, 8192);
    CHECK_EQ(pool.kept_bytes(), 8192u);
    void * other = pool.take(4096);
    CHECK(other != pages);
    CHECK_EQ(pool.take(8192), static_cast<void *>(pages));
    CHECK_EQ(int(pages[8191]), 7);
    CHECK_EQ(pool.kept_bytes(), 0u);
    pool.give(pages, 8192);
    pool.give(other, 4096);
}

TEST(pages_beyond_what_may_be_kept_go_back_to_the_system) {
    PagePool pool(std::chrono::hours(1));
    void * first = pool.take(8192);
    void * second = pool.take(4096);
    REQUIRE(first && second);
    pool.give(first, 8192);
    pool.give(second, 4096);
    pool.keep_at_most(12288);
    CHECK_EQ(pool.kept_bytes(), 12288u);
    pool.keep_at_most(5000); // the oldest goes; the thread unmaps it in its own time
    while (pool.kept_bytes() > 4096)
        std::this_thread::yield();
    CHECK_EQ(pool.take(4096), second);
    pool.give(second, 4096);
}

XLM_TEST_MAIN
