// Traces of the toy model's steps on XLM0 over the virtual GPU: what they hold, and what they show of a step.
#include "backend/core.hpp"
#include "backend_cases.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

using namespace toy;

namespace {

constexpr int kLayers = 3;
constexpr uint64_t kPlenty = 32 << 20;

struct Pair : toy::Pair {
    explicit Pair(uint32_t seed) : toy::Pair(seed, kLayers, false) {}
};

// What the counters say of a step is what its events add up to.
void check_one_step(const std::vector<xlm_trace_event> & events, const xlm_stats & stats) {
    uint64_t n_steps = 0, n_cpu = 0, n_device = 0, streamed = 0, down = 0, written_back = 0;
    for (const xlm_trace_event & event : events) {
        CHECK_EQ(event.struct_size, uint32_t{sizeof event});
        CHECK(event.begin_ns > 0 && event.begin_ns <= event.end_ns);
        CHECK(event.device_begin_ns <= event.device_end_ns);
        const bool placed = event.kind == XLM_TRACE_DEVICE || event.kind == XLM_TRACE_UPLOAD;
        CHECK(!placed || (event.sublayer >= 0 && event.n_sublayers > 0));
        n_steps += event.kind == XLM_TRACE_STEP;
        n_cpu += event.kind == XLM_TRACE_CPU;
        n_device += event.kind == XLM_TRACE_DEVICE;
        streamed += event.kind == XLM_TRACE_UPLOAD ? event.bytes : 0;
        down += event.kind == XLM_TRACE_COPY_DOWN ? event.bytes : 0;
        written_back += event.kind == XLM_TRACE_WRITE_BACK ? event.bytes : 0;
    }
    CHECK_EQ(n_steps, stats.n_graphs);
    CHECK_EQ(n_cpu, stats.n_segments_cpu);
    CHECK_EQ(n_device, stats.n_segments_device);
    CHECK_EQ(streamed, stats.bytes_streamed + stats.bytes_kv_streamed);
    CHECK_EQ(down + written_back, stats.bytes_activations_down + stats.bytes_kv_written_back);
}

void test_trace() {
    Pair pair(21);
    std::mt19937 random(23);
    std::vector<uint8_t> placement(xlm_device_sublayer_count());
    for (size_t i = 0; i < placement.size(); i++)
        placement[i] = static_cast<uint8_t>(i % 4);
    set_budget(kPlenty);
    set_placements(placement, 1 << 20);
    CHECK(pair.step(random, 3));
    uint64_t lost = 0;
    CHECK(read_trace(64, lost).empty()); // off
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    CHECK_EQ(xlm_device_trace(4096), XLM_OK);
    CHECK(pair.step(random, 1));
    xlm_stats stats{};
    stats.struct_size = sizeof stats;
    CHECK_EQ(xlm_device_stats(&stats), XLM_OK);
    check_one_step(read_trace(4096, lost), stats);
    CHECK_EQ(lost, uint64_t{0});
    CHECK_EQ(xlm_device_trace(4), XLM_OK); // the newest stay
    CHECK(pair.step(random, 1));
    const std::vector<xlm_trace_event> newest = read_trace(64, lost);
    CHECK_EQ(newest.size(), size_t{4});
    CHECK(lost > 0);
    CHECK_EQ(newest.back().kind, uint32_t{XLM_TRACE_STEP});
}

// A token with everything on the device: one copy for all that its step reads, and the rows of its caches on their way
// home before the output matrix is given to the device.
void test_one_copy_up_and_rows_beside_the_output() {
    Pair pair(24);
    std::mt19937 random(31);
    set_budget(kPlenty);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
    for (int i = 0; i < 2; i++)
        CHECK(pair.step(random, 1));
    CHECK_EQ(xlm_device_trace(4096), XLM_OK);
    CHECK(pair.step(random, 1));
    uint64_t lost = 0;
    std::string order;
    for (const xlm_trace_event & event : read_trace(4096, lost))
        order += event.kind == XLM_TRACE_COPY_UP      ? 'u'
                 : event.kind == XLM_TRACE_DEVICE     ? 'c'
                 : event.kind == XLM_TRACE_WRITE_BACK ? 'r'
                 : event.kind == XLM_TRACE_COPY_DOWN  ? 'd'
                                                      : '.';
    order.erase(std::remove(order.begin(), order.end(), '.'), order.end());
    const size_t n_computed = order.find_first_not_of('c', 1) - 1; // in as many segments as a reclaim may wait for
    CHECK(order == "u" + std::string(n_computed, 'c') + std::string(2 * kLayers, 'r') + "cd");
    CHECK(pair.same_caches());
    CHECK_EQ(xlm_device_trace(0), XLM_OK);
}

// The same with an output matrix that takes long: some rows at a time, each with its logits behind it.
void test_slow_output_goes_by_rows() {
    Pair pair(25);
    std::mt19937 random(33);
    set_budget(kPlenty);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_RESIDENT), 0);
    for (int i = 0; i < 2; i++)
        CHECK(pair.step(random, 1));
    xlm::core().step_paces.of(1).learn(1, 1'000'000'000);
    CHECK_EQ(xlm_device_trace(4096), XLM_OK);
    CHECK(pair.step(random, 1));
    uint64_t lost = 0;
    std::vector<uint64_t> logits, caches;
    for (const xlm_trace_event & event : read_trace(4096, lost)) {
        if (event.kind == XLM_TRACE_COPY_DOWN) logits.push_back(event.bytes);
        if (event.kind == XLM_TRACE_WRITE_BACK) caches.push_back(event.bytes);
    }
    CHECK_EQ(caches.size(), size_t{2 * kLayers});
    CHECK((logits == std::vector<uint64_t>{64 * sizeof(float), (kVocab - 64) * sizeof(float)}));
    CHECK(pair.same_caches());
    CHECK_EQ(xlm_device_trace(0), XLM_OK);
}

void test_trace_read_while_a_step_runs() {
    Pair pair(22);
    std::mt19937 random(29);
    set_budget(kPlenty);
    set_placements(std::vector<uint8_t>(xlm_device_sublayer_count(), XLM_PLACE_STREAM), 1 << 20);
    std::atomic<bool> done{false};
    std::thread reader([&] {
        uint64_t lost = 0;
        for (uint32_t i = 0; !done.load(); i++) {
            CHECK_EQ(xlm_device_trace(i % 3 == 0 ? 0 : 32), XLM_OK);
            CHECK(read_trace(64, lost).size() <= 32);
        }
    });
    for (int i = 0; i < 20; i++)
        CHECK(pair.step(random, 1 + i % 3));
    done = true;
    reader.join();
    CHECK_EQ(xlm_device_trace(0), XLM_OK);
    CHECK_EQ(xlm_device_trace(1u << 30), XLM_ERR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_device_trace_read(nullptr, 1, nullptr, nullptr), XLM_ERR_INVALID_ARGUMENT);
}

} // namespace

int main(int argc, char ** argv) {
    constexpr Case cases[] = {
        {"events", test_trace},
        {"copies", test_one_copy_up_and_rows_beside_the_output},
        {"rows", test_slow_output_goes_by_rows},
        {"threads", test_trace_read_while_a_step_runs},
    };
    return run_cases(argc, argv, cases);
}
