// Exact mode gives the bits of plain ggml-cpu.
#include "sim_fixture.hpp"

using namespace xlm::test;

namespace {

struct Input {
    ggml_tensor * tensor;
    std::vector<uint8_t> bytes;
};

// A graph and its data; built anew for each device.
struct Toy {
    Context context;
    ggml_tensor * result = nullptr;
    std::vector<Input> inputs;

    ggml_tensor * add(ggml_tensor * tensor, uint32_t seed) {
        const std::vector<float> values = random_floats(static_cast<size_t>(ggml_nelements(tensor)), seed);
        std::vector<uint8_t> bytes(ggml_nbytes(tensor));
        if (tensor->type == GGML_TYPE_F32) {
            std::memcpy(bytes.data(), values.data(), bytes.size());
        } else {
            ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, ggml_nrows(tensor), tensor->ne[0],
                                nullptr);
        }
        inputs.push_back({tensor, bytes});
        return tensor;
    }
    template <typename T>
    ggml_tensor * add_values(ggml_tensor * tensor, const std::vector<T> & values) {
        std::vector<uint8_t> bytes(ggml_nbytes(tensor));
        std::memcpy(bytes.data(), values.data(), bytes.size());
        inputs.push_back({tensor, bytes});
        return tensor;
    }
};

using Build = void (*)(Toy &);

std::vector<uint8_t> run(Build build, ggml_backend_t backend) {
    Toy toy;
    build(toy);
    ggml_cgraph * graph = graph_of(toy.context, toy.result);
    Buffer buffer(ggml_backend_alloc_ctx_tensors(toy.context, backend));
    REQUIRE(buffer);
    ggml_backend_buffer_clear(buffer.get(), 0);
    for (const Input & input : toy.inputs) {
        ggml_backend_tensor_set_async(backend, input.tensor, input.bytes.data(), 0, input.bytes.size());
    }
    REQUIRE(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS);
    std::vector<uint8_t> out(ggml_nbytes(toy.result));
    ggml_backend_tensor_get(toy.result, out.data(), 0, out.size());
    return out;
}

bool same_bits(Build build) {
    use_config(plain_config());
    Backend sim = sim_backend();
    Backend cpu(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    const std::vector<uint8_t> expected = run(build, cpu.get());
    CHECK(expected != std::vector<uint8_t>(expected.size(), 0));
    return run(build, sim.get()) == expected;
}

template <ggml_type type>
void mul_mat(Toy & toy) {
    ggml_tensor * w = toy.add(ggml_new_tensor_2d(toy.context, type, 256, 64), 1);
    ggml_tensor * x = toy.add(ggml_new_tensor_2d(toy.context, GGML_TYPE_F32, 256, 5), 2);
    toy.result = ggml_mul_mat(toy.context, w, x);
}

void soft_max(Toy & toy) {
    ggml_tensor * x = toy.add(ggml_new_tensor_2d(toy.context, GGML_TYPE_F32, 100, 4), 3);
    toy.result = ggml_soft_max(toy.context, x);
}

void flash_attention(Toy & toy) {
    ggml_tensor * q = toy.add(ggml_new_tensor_3d(toy.context, GGML_TYPE_F32, 64, 4, 2), 4);
    ggml_tensor * k = toy.add(ggml_new_tensor_3d(toy.context, GGML_TYPE_F16, 64, 96, 2), 5);
    ggml_tensor * v = toy.add(ggml_new_tensor_3d(toy.context, GGML_TYPE_F16, 64, 96, 2), 6);
    toy.result = ggml_flash_attn_ext(toy.context, q, k, v, nullptr, 0.125f, 0.0f, 0.0f);
}

void set_rows(Toy & toy) {
    ggml_tensor * cache = ggml_new_tensor_2d(toy.context, GGML_TYPE_F16, 64, 10);
    ggml_tensor * rows = toy.add(ggml_new_tensor_2d(toy.context, GGML_TYPE_F32, 64, 3), 7);
    ggml_tensor * where = toy.add_values<int64_t>(ggml_new_tensor_1d(toy.context, GGML_TYPE_I64, 3), {7, 0, 9});
    toy.result = ggml_set_rows(toy.context, cache, rows, where);
}

void experts(Toy & toy) {
    ggml_tensor * w = toy.add(ggml_new_tensor_3d(toy.context, GGML_TYPE_Q8_0, 64, 32, 4), 8);
    ggml_tensor * x = toy.add(ggml_new_tensor_3d(toy.context, GGML_TYPE_F32, 64, 1, 2), 9);
    ggml_tensor * ids = toy.add_values<int32_t>(ggml_new_tensor_2d(toy.context, GGML_TYPE_I32, 2, 2), {3, 0, 1, 2});
    toy.result = ggml_mul_mat_id(toy.context, w, x, ids);
}

} // namespace

TEST(mul_mat_q4_1) {
    CHECK(same_bits(mul_mat<GGML_TYPE_Q4_1>));
}
TEST(mul_mat_q8_0) {
    CHECK(same_bits(mul_mat<GGML_TYPE_Q8_0>));
}
TEST(mul_mat_f16) {
    CHECK(same_bits(mul_mat<GGML_TYPE_F16>));
}
TEST(soft_max_f32) {
    CHECK(same_bits(soft_max));
}
TEST(flash_attention_f16) {
    CHECK(same_bits(flash_attention));
}
TEST(set_rows_f16) {
    CHECK(same_bits(set_rows));
}
TEST(mul_mat_id_q8_0) {
    CHECK(same_bits(experts));
}

TEST(the_number_of_threads_is_set_per_backend) {
    use_config(plain_config());
    Backend sim = sim_backend();
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(sim_device());
    auto set_n_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"));
    REQUIRE(set_n_threads);
    CHECK(!ggml_backend_reg_get_proc_address(registry, "no_such_function"));
    const std::vector<uint8_t> one = run(mul_mat<GGML_TYPE_Q8_0>, sim.get());
    set_n_threads(sim.get(), 2);
    CHECK(run(mul_mat<GGML_TYPE_Q8_0>, sim.get()) == one);
}

XLM_TEST_MAIN
