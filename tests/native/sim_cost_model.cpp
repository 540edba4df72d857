#include "sim/cost_model.hpp"

#include "check.hpp"
#include "sim/config.hpp"
#include "sim_fixture.hpp"

#include <cmath>

using namespace xlm::sim;
using xlm::test::Context;

TEST(mul_mat_reads_its_weights_once) {
    Context c;
    ggml_tensor * w = ggml_new_tensor_2d(c, GGML_TYPE_Q8_0, 256, 100);
    ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 256, 3);
    const OpCost cost = op_cost(*ggml_mul_mat(c, w, x));
    CHECK_EQ(cost.flops, 2.0 * 256 * 100 * 3);
    CHECK_EQ(cost.bytes, 100 * 256 / 32 * 34 + 4.0 * 256 * 3 + 4.0 * 100 * 3);
}

TEST(mul_mat_id_reads_only_used_experts) {
    Context c;
    ggml_tensor * w = ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, 32, 8);
    ggml_tensor * x = ggml_new_tensor_3d(c, GGML_TYPE_F32, 64, 1, 1);
    ggml_tensor * ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 2, 1);
    const OpCost cost = op_cost(*ggml_mul_mat_id(c, w, x, ids));
    CHECK_EQ(cost.flops, 2.0 * 64 * 32 * 2);
    CHECK_EQ(cost.bytes, 2.0 * 64 * 32 * 2 + 4.0 * 64 + 4.0 * 32 * 2);
}

TEST(get_rows_does_not_read_the_table) {
    Context c;
    ggml_tensor * table = ggml_new_tensor_2d(c, GGML_TYPE_F16, 64, 50000);
    ggml_tensor * ids = ggml_new_tensor_1d(c, GGML_TYPE_I32, 4);
    CHECK_EQ(op_cost(*ggml_get_rows(c, table, ids)).bytes, 2.0 * 4 * 64 * 4);
}

TEST(roofline_takes_the_slower_of_the_two) {
    Context c;
    xlm_sim_config config = default_config();
    config.op_launch_ns = 10;
    ggml_tensor * w = ggml_new_tensor_2d(c, GGML_TYPE_F32, 1000, 1000);
    ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 1000, 1);
    const ggml_tensor & op = *ggml_mul_mat(c, w, x);
    config.compute_flops_per_s = 1e9; // 2e6 flops: 2 ms
    config.memory_bytes_per_s = 1e15;
    CHECK_EQ(std::llround(op_ns(config, op)), 2'000'010);
    config.compute_flops_per_s = 1e18;
    config.memory_bytes_per_s = 1e9; // 4.008 MB: 4.008 ms
    CHECK_EQ(std::llround(op_ns(config, op)), 4'008'010);
}

TEST(views_cost_nothing_and_are_not_ops) {
    Context c;
    ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 8, 8);
    ggml_tensor * y = ggml_reshape_1d(c, ggml_scale(c, x, 2.0f), 64);
    ggml_cgraph * graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, y);
    xlm_sim_config config = default_config();
    config.graph_launch_ns = 1000;
    config.op_launch_ns = 100;
    config.compute_flops_per_s = config.memory_bytes_per_s = 1e18;
    CHECK_EQ(count_ops(*graph), 1u);
    CHECK_EQ(op_ns(config, *y), 0.0);
    CHECK_EQ(graph_ns(config, *graph), 1100);
}

XLM_TEST_MAIN
