// The queues between the threads, hammered by threads.
#include <memory>
#include <thread>

#include "check.hpp"
#include "client/rings.hpp"

using namespace xlm::client;

namespace {

struct Slot {
    explicit Slot(std::pmr::memory_resource *) {}
    std::uint64_t value = 0;
};

std::pmr::memory_resource * memory() {
    return std::pmr::get_default_resource();
}

} // namespace

TEST(a_ring_is_full_and_empty_where_it_should) {
    SpscRing<Slot> ring(4, memory());
    CHECK(ring.front() == nullptr);
    for (std::uint64_t i = 0; i < 4; i++) {
        REQUIRE(ring.back() != nullptr);
        ring.back()->value = i;
        ring.push();
    }
    CHECK(ring.back() == nullptr);
    CHECK_EQ(ring.size(), 4u);
    CHECK_EQ(ring.front()->value, 0u);
    ring.pop();
    CHECK(ring.back() != nullptr);
}

TEST(a_ring_hands_over_in_order) {
    SpscRing<Slot> ring(8, memory());
    constexpr std::uint64_t n = 20'000;
    std::thread producer([&] {
        for (std::uint64_t i = 0; i < n;) {
            if (Slot * slot = ring.back()) {
                slot->value = i++;
                ring.push();
            } else {
                std::this_thread::yield();
            }
        }
    });
    std::uint64_t expected = 0;
    while (expected < n) {
        if (Slot * slot = ring.front()) {
            if (slot->value != expected) break;
            expected++;
            ring.pop();
        } else {
            std::this_thread::yield();
        }
    }
    producer.join();
    CHECK_EQ(expected, n);
}

TEST(a_queue_loses_nothing_of_many_producers) {
    MpscQueue<std::uint32_t> queue(16, memory());
    constexpr std::uint32_t n_threads = 4, n_each = 5'000;
    std::vector<std::thread> producers;
    for (std::uint32_t t = 0; t < n_threads; t++)
        producers.emplace_back([&, t] {
            for (std::uint32_t i = 0; i < n_each;)
                if (queue.push(t * n_each + i))
                    i++;
                else
                    std::this_thread::yield();
        });
    std::vector<std::uint32_t> next(n_threads, 0);
    bool in_order = true;
    for (std::uint32_t taken = 0; taken < n_threads * n_each;) {
        std::uint32_t value;
        if (!queue.pop(value)) {
            std::this_thread::yield();
            continue;
        }
        in_order &= next[value / n_each]++ == value % n_each; // of each producer
        taken++;
    }
    for (std::thread & one : producers)
        one.join();
    CHECK(in_order);
    std::uint32_t value;
    CHECK(!queue.pop(value));
}

TEST(a_free_list_gives_no_index_twice) {
    constexpr std::uint32_t n = 8;
    FreeList list(n, memory());
    std::vector<std::atomic<int>> owners(n);
    std::atomic<bool> twice{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&] {
            for (int i = 0; i < 5'000; i++) {
                const std::uint32_t index = list.take();
                if (index == FreeList::none) continue;
                if (owners[index].fetch_add(1) != 0) twice = true;
                owners[index].fetch_sub(1);
                list.release(index);
            }
        });
    for (std::thread & one : threads)
        one.join();
    CHECK(!twice);
    for (std::uint32_t i = 0; i < n; i++)
        CHECK(list.take() != FreeList::none);
    CHECK_EQ(list.take(), FreeList::none);
}

TEST(a_free_list_gives_the_last_one_first) {
    FreeList list(4, memory());
    CHECK_EQ(list.take(), 0u);
    CHECK_EQ(list.take(), 1u);
    list.release(0);
    CHECK_EQ(list.take(), 0u);
}

XLM_TEST_MAIN
