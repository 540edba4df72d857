// Modelled mode on virtual time: ends are fixed at submission. Durations are hours,
// so that the real time the test takes cannot matter; nothing here waits for them.
#include "sim/buffer.hpp"
#include "sim/stream.hpp"
#include "sim/vtables.hpp"

#include "sim_fixture.hpp"

using namespace xlm::sim;
using xlm::test::Context;
using xlm::test::graph_of;

namespace {

constexpr ns_t hour_ns = 3'600'000'000'000;

// 1 graph = 1 hour; 1 byte over the link = 1 hour. Small copies pass big ones.
SimDevice & slow_device() {
    xlm_sim_config config{};
    xlm_sim_default_config(&config);
    config.mode = XLM_SIM_MODELLED;
    config.graph_launch_ns = static_cast<double>(hour_ns);
    config.op_launch_ns = 0;
    config.compute_flops_per_s = config.memory_bytes_per_s = 1e18;
    config.link_bytes_per_s = 1.0 / 3600;
    config.link_latency_ns = 0;
    REQUIRE(xlm_sim_configure(&config) == XLM_OK);
    return SimDevice::instance();
}

struct Tensors {
    Context context;
    ggml_tensor * x = ggml_new_tensor_1d(context, GGML_TYPE_I8, 64);
    ggml_cgraph * graph = graph_of(context, ggml_scale(context, ggml_new_tensor_1d(context, GGML_TYPE_F32, 1), 2.0f));
    std::vector<char> memory = std::vector<char>(64);
    Tensors() { x->data = memory.data(); }
};

// Ends, in hours after the start of the test, rounded.
struct Clock {
    ns_t start_ns = now_ns();
    int64_t hours(Stream & stream) const { return (stream.record()->time_ns() - start_ns + hour_ns / 2) / hour_ns; }
};

} // namespace

TEST(engines_overlap_and_streams_are_in_order) {
    SimDevice & device = slow_device();
    Tensors t;
    const auto compute = make_stream(device);
    const auto copy = make_stream(device);
    const Clock clock;
    CHECK_EQ(compute->compute(*t.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(compute->compute(*t.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(clock.hours(*compute), 2);
    copy->upload(*t.x, t.memory.data(), 0, 5);
    CHECK_EQ(clock.hours(*copy), 5); // beside the computation
    copy->download(*t.x, t.memory.data(), 0, 1);
    CHECK_EQ(clock.hours(*copy), 6); // after its own upload, though the down link is free
    compute->wait(copy->record());
    CHECK_EQ(compute->compute(*t.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(clock.hours(*compute), 7);

    // A second graph elsewhere finds the compute engine idle between hours 2 and 6.
    const auto other = make_stream(device);
    CHECK_EQ(other->compute(*t.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(clock.hours(*other), 3);
}

TEST(device_copies_take_device_bandwidth) {
    SimDevice & device = slow_device();
    xlm_sim_config config = device.config();
    config.memory_bytes_per_s = 128.0 / 3600; // 64 bytes read and written: an hour
    bool state_error = false;
    REQUIRE(device.configure(config, state_error).empty());
    Tensors t;
    const auto stream = make_stream(device);
    const ns_t before_ns = stream->record()->time_ns();
    stream->wait(Signal::at(now_ns() + 100 * hour_ns)); // clear of what earlier tests left on the engines
    const Clock clock;
    stream->copy(*t.x, *t.x);
    CHECK_EQ(clock.hours(*stream), 101);
    CHECK_EQ(before_ns, 0);
}

XLM_TEST_MAIN
