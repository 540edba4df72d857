// The device as ggml sees it: memory, properties, errors, counters.
#include "sim_fixture.hpp"

using namespace xlm::test;

TEST(it_is_a_discrete_asynchronous_gpu) {
    ggml_backend_dev_t device = sim_device();
    CHECK_EQ(std::string(ggml_backend_dev_name(device)), "SIM0");
    CHECK_EQ(ggml_backend_dev_type(device), GGML_BACKEND_DEVICE_TYPE_GPU);
    ggml_backend_dev_props props{};
    ggml_backend_dev_get_props(device, &props);
    CHECK(props.caps.async && props.caps.events && props.caps.host_buffer && !props.caps.buffer_from_host_ptr);
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(device);
    CHECK(!ggml_backend_buft_is_host(type));
    CHECK(ggml_backend_buft_is_host(host));
    CHECK(ggml_backend_dev_supports_buft(device, type));
    CHECK(!ggml_backend_dev_supports_buft(device, host));
    CHECK(!ggml_backend_dev_supports_buft(device, ggml_backend_cpu_buffer_type()));
    CHECK(xlm_sim_registry() == ggml_backend_dev_backend_reg(device));
}

TEST(ops_are_those_of_the_cpu_without_host_callbacks) {
    Context c;
    ggml_tensor * w = ggml_new_tensor_2d(c, GGML_TYPE_Q4_1, 64, 64);
    ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 64, 1);
    Gate gate;
    CHECK(ggml_backend_dev_supports_op(sim_device(), ggml_mul_mat(c, w, x)));
    CHECK(!ggml_backend_dev_supports_op(sim_device(), gate.tensor(c, x)));
    CHECK(!ggml_backend_dev_offload_op(sim_device(), ggml_mul_mat(c, w, x)));
    ggml_tensor * batch = ggml_new_tensor_2d(c, GGML_TYPE_F32, 64, 32);
    CHECK(ggml_backend_dev_offload_op(sim_device(), ggml_mul_mat(c, w, batch)));
}

TEST(memory_is_capped_and_counted) {
    use_config(plain_config());
    size_t free = 0, total = 0;
    Buffer first = sim_buffer(6 << 20);
    REQUIRE(first);
    CHECK(!sim_buffer((2 << 20) + 1));
    ggml_backend_dev_memory(sim_device(), &free, &total);
    CHECK_EQ(total, size_t{8 << 20});
    CHECK_EQ(free, size_t{2 << 20});
    CHECK_EQ(counters().used_bytes, uint64_t{6 << 20});
    CHECK_EQ(counters().n_alloc_failed, 1u);
    first.reset();
    CHECK_EQ(counters().used_bytes, 0u);
    CHECK_EQ(counters().peak_bytes, uint64_t{6 << 20});
    CHECK_EQ(xlm_sim_reset_counters(), XLM_OK);
    CHECK_EQ(counters().peak_bytes, 0u);
}

TEST(another_process_may_take_memory) {
    use_config(plain_config());
    CHECK_EQ(xlm_sim_set_foreign_bytes(7 << 20), XLM_OK);
    size_t free = 0, total = 0;
    ggml_backend_dev_memory(sim_device(), &free, &total);
    CHECK_EQ(free, size_t{1 << 20});
    CHECK(!sim_buffer(2 << 20));
    CHECK_EQ(counters().foreign_bytes, uint64_t{7 << 20});
    CHECK_EQ(xlm_sim_set_foreign_bytes(0), XLM_OK);
    CHECK(sim_buffer(2 << 20));
}

TEST(allocations_fail_on_demand) {
    use_config(plain_config());
    CHECK_EQ(xlm_sim_fail_allocations(1, 1), XLM_OK);
    CHECK(sim_buffer(100));
    CHECK(!sim_buffer(100));
    CHECK(sim_buffer(100));
}

TEST(a_zero_sized_buffer_takes_nothing) {
    use_config(plain_config());
    Buffer empty = sim_buffer(0);
    CHECK(empty);
    CHECK_EQ(counters().used_bytes, 0u);
}

TEST(data_survives_the_round_trip) {
    use_config(plain_config());
    Context c;
    ggml_tensor * t = ggml_new_tensor_1d(c, GGML_TYPE_F32, 1000);
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    const std::vector<float> in = random_floats(1000, 1);
    std::vector<float> out(1000);
    ggml_backend_tensor_set(t, in.data(), 0, 4000);
    ggml_backend_tensor_get(t, out.data(), 0, 4000);
    CHECK(in == out);
    ggml_backend_tensor_memset(t, 0, 4, 4);
    ggml_backend_tensor_get(t, out.data(), 0, 4000);
    CHECK(out[0] == in[0] && out[1] == 0.0f && out[2] == in[2]);
    ggml_backend_buffer_clear(buffer.get(), 0);
    ggml_backend_tensor_get(t, out.data(), 0, 4000);
    CHECK(out == std::vector<float>(1000, 0.0f));
    CHECK_EQ(counters().h2d_bytes, 4000u);
    CHECK_EQ(counters().n_h2d, 1u);
    CHECK_EQ(counters().d2h_bytes, 12000u);
    CHECK_EQ(counters().n_d2h, 3u);
}

TEST(strided_copies_go_through_ggmls_loop) {
    use_config(plain_config());
    Context c;
    ggml_tensor * t = ggml_new_tensor_2d(c, GGML_TYPE_F32, 8, 4);
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    const std::vector<float> in = random_floats(8, 2);
    std::vector<float> out(8);
    ggml_backend_buffer_clear(buffer.get(), 0);
    ggml_backend_tensor_set_2d(t, in.data(), 4, 8, 4, 32, 8);
    ggml_backend_tensor_get_2d(t, out.data(), 4, 8, 4, 32, 8);
    CHECK(in == out);
    Backend backend = sim_backend();
    std::vector<float> again(8);
    ggml_backend_tensor_get_2d_async(backend.get(), t, again.data(), 4, 8, 4, 32, 8);
    ggml_backend_synchronize(backend.get());
    CHECK(in == again);
}

TEST(link_time_is_counted_as_configured) {
    xlm_sim_config config = plain_config();
    config.link_bytes_per_s = 1e9;
    config.link_latency_ns = 1000;
    use_config(config);
    Context c;
    ggml_tensor * t = ggml_new_tensor_1d(c, GGML_TYPE_I8, 100'000);
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    std::vector<int8_t> data(100'000);
    ggml_backend_tensor_set(t, data.data(), 0, data.size());
    ggml_backend_tensor_set(t, data.data(), 0, 10);
    ggml_backend_tensor_get(t, data.data(), 0, 50'000);
    CHECK_EQ(counters().h2d_ns, 101'000u + 1'010u);
    CHECK_EQ(counters().d2h_ns, 51'000u);
    CHECK_EQ(xlm_sim_upload_bytes_per_s(), 0.0);
}

TEST(bad_arguments_are_typed_errors) {
    CHECK_EQ(xlm_sim_configure(nullptr), XLM_ERR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_sim_get_counters(nullptr), XLM_ERR_INVALID_ARGUMENT);
    xlm_sim_counters c{};
    CHECK_EQ(xlm_sim_get_counters(&c), XLM_ERR_INVALID_ARGUMENT);
    xlm_sim_config config = plain_config();
    config.struct_size = 8;
    CHECK_EQ(xlm_sim_configure(&config), XLM_ERR_INVALID_ARGUMENT);
    config = plain_config();
    config.mode = 77;
    CHECK_EQ(xlm_sim_configure(&config), XLM_ERR_INVALID_ARGUMENT);
    CHECK(std::string(xlm_sim_last_error()).find("mode") != std::string::npos);
    xlm_sim_default_config(nullptr);
}

TEST(an_older_callers_smaller_counters_are_not_overrun) {
    xlm_sim_counters c{};
    c.struct_size = offsetof(xlm_sim_counters, n_graphs_failed);
    c.n_graphs_failed = c.foreign_bytes = 4711;
    CHECK_EQ(xlm_sim_get_counters(&c), XLM_OK);
    CHECK_EQ(c.n_graphs_failed, 4711u);
    CHECK_EQ(c.foreign_bytes, 4711u);
}

TEST(what_is_in_use_cannot_be_configured_away) {
    use_config(plain_config());
    xlm_sim_config smaller = plain_config();
    smaller.vram_bytes = 1 << 20;
    xlm_sim_config modelled = plain_config();
    modelled.mode = XLM_SIM_MODELLED;
    {
        Buffer buffer = sim_buffer(2 << 20);
        CHECK_EQ(xlm_sim_configure(&smaller), XLM_ERR_STATE);
        CHECK_EQ(xlm_sim_configure(&modelled), XLM_ERR_STATE);
        CHECK_EQ(counters().vram_bytes, uint64_t{8 << 20});
    }
    {
        Backend backend = sim_backend();
        CHECK_EQ(xlm_sim_configure(&modelled), XLM_ERR_STATE);
    }
    CHECK_EQ(xlm_sim_configure(&modelled), XLM_OK);
    CHECK_EQ(xlm_sim_configure(&smaller), XLM_OK);
}

XLM_TEST_MAIN
