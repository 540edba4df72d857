// A game that never stops to ask for memory.
#pragma once

#include "backend_toy.hpp"

#include <atomic>
#include <thread>

namespace toy {

constexpr uint64_t kMuch = 32 << 20;

// Budgets change without a pause, some asked for by who does not wait.
struct Storm {
    Storm() {
        threads_.emplace_back([this] {
            const uint64_t budgets[] = {0, kMuch, 40 << 10, kMuch, 200 << 10, 400 << 10};
            for (size_t i = 0; !done_; i++)
                change(budgets[i % 6], 600ULL * 1000000000ULL);
        });
        threads_.emplace_back([this] {
            std::mt19937 random(41);
            for (; !done_; std::this_thread::yield())
                change(random() % 2 ? kMuch : random() % (600 << 10), 0);
        });
    }
    ~Storm() {
        done_ = true;
        for (std::thread & thread : threads_)
            thread.join();
        set_budget(0);
        CHECK_EQ(memory().used_bytes, uint64_t{0});
        CHECK_EQ(memory().over_budget_events, uint64_t{0});
        CHECK_EQ(Sim::get().counters().n_frees_in_use, uint64_t{0});
    }
    Storm(const Storm &) = delete;
    Storm & operator=(const Storm &) = delete;

private:
    // "Not completed" may be of the other thread's budget, which came in between.
    static void change(uint64_t bytes, uint64_t timeout_ns) {
        const xlm_status status = xlm_device_set_budget(bytes, timeout_ns, nullptr);
        CHECK(status == XLM_OK || status == XLM_ERR_TIMEOUT);
    }

    std::atomic<bool> done_{false};
    std::vector<std::thread> threads_;
};

// A request is asked for at every border, and the budget never falls: all that wants the device stays there.
class Pester {
public:
    Pester() {
        set_budget(kMuch);
        thread_ = std::thread([this] {
            while (!done_)
                CHECK_EQ(xlm_device_set_budget(kMuch, 0, nullptr), XLM_OK);
        });
    }
    ~Pester() {
        done_ = true;
        thread_.join();
    }
    Pester(const Pester &) = delete;
    Pester & operator=(const Pester &) = delete;

private:
    std::atomic<bool> done_{false};
    std::thread thread_;
};

} // namespace toy
