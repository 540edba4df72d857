// Modelled mode through ggml: what is real, what is made up, what is counted.
#include "sim_fixture.hpp"

#include <cmath>
#include <filesystem>
#include <set>
#include <thread>

using namespace xlm::test;

namespace {

// Fast enough that no wait matters.
xlm_sim_config modelled_config() {
    xlm_sim_config config = plain_config();
    config.mode = XLM_SIM_MODELLED;
    config.link_bytes_per_s = 1e12;
    config.link_latency_ns = 10;
    config.compute_flops_per_s = 1e15;
    config.memory_bytes_per_s = 1e13;
    config.op_launch_ns = 5;
    config.graph_launch_ns = 100;
    return config;
}

std::vector<float> read(ggml_tensor * tensor) {
    std::vector<float> out(static_cast<size_t>(ggml_nelements(tensor)));
    ggml_backend_tensor_get(tensor, out.data(), 0, ggml_nbytes(tensor));
    return out;
}

Buffer on_device(const Context & context) {
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    return buffer;
}

bool harmless(const std::vector<float> & values) {
    for (const float value : values) {
        if (value != 0.0f && !std::isnormal(value)) return false;
    }
    return true;
}

} // namespace

TEST(time_comes_from_the_cost_model) {
    use_config(modelled_config());
    Context c;
    ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 1000, 100);
    ggml_cgraph * graph = graph_of(c, ggml_scale(c, x, 2.0f));
    Buffer buffer = on_device(c);
    Backend stream = sim_backend();
    REQUIRE(ggml_backend_graph_compute(stream.get(), graph) == GGML_STATUS_SUCCESS);
    CHECK_EQ(counters().compute_ns, 100u + 5u + 80u); // launch, op, 800 kB at 10 TB/s
    CHECK_EQ(counters().n_graphs, 1u);
    CHECK_EQ(counters().n_ops, 1u);
    const std::vector<float> data(100'000);
    ggml_backend_tensor_set_async(stream.get(), x, data.data(), 0, 400'000);
    ggml_backend_synchronize(stream.get());
    CHECK_EQ(counters().h2d_ns, 10u + 400u);
    CHECK_EQ(counters().n_host_syncs, 2u);
}

#if defined(__linux__)
TEST(no_thread_is_needed) {
    use_config(modelled_config());
    const auto n_threads = [] {
        const std::filesystem::directory_iterator tasks("/proc/self/task");
        return std::distance(begin(tasks), end(tasks));
    };
    const auto before = n_threads();
    Backend stream = sim_backend();
    CHECK_EQ(n_threads(), before);
}
#endif

TEST(small_and_integer_data_is_real) {
    use_config(modelled_config());
    Context c;
    ggml_tensor * small = ggml_new_tensor_1d(c, GGML_TYPE_F32, 1000);
    ggml_tensor * ids = ggml_new_tensor_1d(c, GGML_TYPE_I64, 10'000);
    Buffer buffer = on_device(c);
    const std::vector<float> floats = random_floats(1000, 1);
    ggml_backend_tensor_set(small, floats.data(), 0, 4000);
    CHECK(read(small) == floats);
    std::vector<int64_t> in(10'000), out(10'000);
    for (size_t i = 0; i < in.size(); i++)
        in[i] = static_cast<int64_t>(i * i);
    Backend stream = sim_backend();
    ggml_backend_tensor_set_async(stream.get(), ids, in.data(), 0, 80'000);
    ggml_backend_tensor_get_async(stream.get(), ids, out.data(), 0, 80'000);
    ggml_backend_synchronize(stream.get());
    CHECK(in == out);
}

TEST(big_floats_are_a_fixed_harmless_pattern) {
    use_config(modelled_config());
    Context c;
    ggml_tensor * big = ggml_new_tensor_1d(c, GGML_TYPE_F32, 10'000);
    Buffer buffer = on_device(c);
    const std::vector<float> nan(10'000, std::nanf(""));
    ggml_backend_tensor_set(big, nan.data(), 0, 40'000);
    const std::vector<float> first = read(big);
    CHECK(harmless(first));
    CHECK(std::set<float>(first.begin(), first.end()).size() > 100);
    CHECK(read(big) == first);
}

TEST(stale_bits_never_reach_the_host_as_nan) {
    use_config(modelled_config());
    Context c;
    ggml_tensor * bits = ggml_new_tensor_1d(c, GGML_TYPE_I32, 4);
    ggml_tensor * floats = ggml_view_1d(c, ggml_new_tensor_1d(c, GGML_TYPE_F32, 4), 4, 0);
    Buffer buffer = on_device(c);
    const std::vector<uint32_t> bad = {0x7fc00000u, 0x7f800000u, 0x00000001u, 0x7e000000u};
    floats->data = bits->data;
    ggml_backend_tensor_set(bits, bad.data(), 0, 16);
    CHECK(harmless(read(floats)));
}

TEST(expert_ids_are_valid_and_distinct) {
    use_config(modelled_config());
    Context c;
    ggml_tensor * probabilities = ggml_new_tensor_2d(c, GGML_TYPE_F32, 64, 7);
    ggml_tensor * sorted = ggml_argsort(c, probabilities, GGML_SORT_ORDER_DESC);
    ggml_tensor * chosen = ggml_view_2d(c, sorted, 8, 7, sorted->nb[1], 0);
    ggml_tensor * best = ggml_argmax(c, probabilities);
    ggml_cgraph * graph = graph_of(c, chosen);
    ggml_build_forward_expand(graph, best);
    Buffer buffer = on_device(c);
    Backend stream = sim_backend();
    REQUIRE(ggml_backend_graph_compute(stream.get(), graph) == GGML_STATUS_SUCCESS);
    std::vector<int32_t> ids(64 * 7), best_ids(7);
    ggml_backend_tensor_get(sorted, ids.data(), 0, ids.size() * 4);
    ggml_backend_tensor_get(best, best_ids.data(), 0, 28);
    for (size_t row = 0; row < 7; row++) {
        const std::set<int32_t> distinct(ids.begin() + row * 64, ids.begin() + (row + 1) * 64);
        CHECK_EQ(distinct.size(), 64u);
        CHECK_EQ(*distinct.begin(), 0);
        CHECK_EQ(*distinct.rbegin(), 63);
        CHECK(best_ids[row] >= 0 && best_ids[row] < 64);
    }
    std::vector<int32_t> again(64 * 7);
    REQUIRE(ggml_backend_graph_compute(stream.get(), graph) == GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(sorted, again.data(), 0, again.size() * 4);
    CHECK(again != ids); // the next token chooses other experts
}

TEST(memory_is_capped_as_in_exact_mode) {
    use_config(modelled_config());
    Buffer most = sim_buffer(7 << 20);
    CHECK(most);
    CHECK(!sim_buffer(2 << 20));
    CHECK_EQ(counters().used_bytes, uint64_t{7 << 20});
}

TEST(uploads_beside_cpu_work_are_charged_at_the_next_wait) {
    xlm_sim_config config = modelled_config();
    config.link_bytes_per_s = 1e9;
    config.cpu_slowdown_per_gb_s = 0.5; // 1 GB/s beside CPU work makes it take 1.5 times as long
    use_config(config);
    Context c;
    ggml_tensor * x = ggml_new_tensor_1d(c, GGML_TYPE_I8, 2'000'000);
    Buffer buffer = on_device(c);
    Backend stream = sim_backend();
    ggml_backend_synchronize(stream.get());
    const std::vector<int8_t> data(2'000'000);
    ggml_backend_tensor_set_async(stream.get(), x, data.data(), 0, data.size());
    while (xlm_sim_upload_bytes_per_s() > 0)
        std::this_thread::yield(); // "CPU work" for the 2 ms of the upload
    const uint64_t before_ns = counters().host_sync_wait_ns;
    ggml_backend_synchronize(stream.get());
    CHECK(counters().host_sync_wait_ns - before_ns >= 1'000'000); // half of 2 ms
}

XLM_TEST_MAIN
