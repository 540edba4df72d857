// Asynchronous work in exact mode: order inside a stream, events between streams,
// and what happens when the caller changes things right after submission.
#include "sim_fixture.hpp"

#include <thread>

using namespace xlm::test;

namespace {

constexpr int64_t n = 256;
constexpr size_t n_bytes = n * sizeof(float);

// y = 2x on the device, behind a gate on the same stream.
struct GatedDouble {
    Gate gate;
    Context context;
    ggml_tensor * x = ggml_new_tensor_1d(context, GGML_TYPE_F32, n);
    ggml_tensor * hold = ggml_new_tensor_1d(context, GGML_TYPE_F32, n);
    ggml_tensor * held = gate.tensor(context, hold);
    ggml_tensor * y = ggml_scale(context, x, 2.0f);
    ggml_cgraph * gate_graph = graph_of(context, held);
    ggml_cgraph * double_graph = graph_of(context, y);
    Buffer buffer{ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_dev_buffer_type(sim_device()))};
    std::vector<float> in = random_floats(n, 3);
    std::vector<float> out = std::vector<float>(n, 0.0f);

    GatedDouble() { REQUIRE(buffer); }
    bool doubled() const {
        for (size_t i = 0; i < in.size(); i++) {
            if (out[i] != 2.0f * in[i]) return false;
        }
        return true;
    }
};

void submit(const Backend & backend, ggml_cgraph * graph) {
    REQUIRE(ggml_backend_graph_compute_async(backend.get(), graph) == GGML_STATUS_SUCCESS);
}

} // namespace

TEST(upload_compute_download_in_one_stream) {
    use_config(plain_config());
    GatedDouble work;
    Backend stream = sim_backend();
    ggml_backend_tensor_set_async(stream.get(), work.x, work.in.data(), 0, n_bytes);
    submit(stream, work.double_graph);
    ggml_backend_tensor_get_async(stream.get(), work.y, work.out.data(), 0, n_bytes);
    ggml_backend_synchronize(stream.get());
    CHECK(work.doubled());
    CHECK_EQ(counters().n_graphs, 1u);
    CHECK_EQ(counters().n_ops, 1u);
    CHECK_EQ(counters().n_host_syncs, 1u);
}

TEST(an_event_orders_two_streams) {
    use_config(plain_config());
    GatedDouble work;
    Backend compute = sim_backend();
    Backend copy = sim_backend();
    Event uploaded(ggml_backend_event_new(sim_device()));
    Event computed(ggml_backend_event_new(sim_device()));
    submit(compute, work.gate_graph); // nothing on this stream runs before the gate opens
    ggml_backend_tensor_set_async(copy.get(), work.x, work.in.data(), 0, n_bytes);
    ggml_backend_event_record(uploaded.get(), copy.get());
    ggml_backend_event_wait(compute.get(), uploaded.get());
    submit(compute, work.double_graph);
    ggml_backend_event_record(computed.get(), compute.get());
    ggml_backend_event_wait(copy.get(), computed.get());
    ggml_backend_tensor_get_async(copy.get(), work.y, work.out.data(), 0, n_bytes);
    work.gate.open();
    ggml_backend_event_synchronize(computed.get());
    ggml_backend_synchronize(copy.get());
    CHECK(work.doubled());
}

TEST(copies_run_while_another_stream_computes) {
    use_config(plain_config());
    GatedDouble work;
    Backend compute = sim_backend();
    Backend copy = sim_backend();
    submit(compute, work.gate_graph);
    ggml_backend_tensor_set_async(copy.get(), work.x, work.in.data(), 0, n_bytes);
    ggml_backend_tensor_get_async(copy.get(), work.x, work.out.data(), 0, n_bytes);
    ggml_backend_synchronize(copy.get()); // would hang if the copy waited for the gate
    CHECK(work.in == work.out);
    work.gate.open();
    ggml_backend_synchronize(compute.get());
}

TEST(the_graph_may_be_changed_right_after_submission) {
    use_config(plain_config());
    GatedDouble work;
    Backend stream = sim_backend();
    Context patched;
    Buffer scratch = sim_buffer(2 * n_bytes);
    REQUIRE(scratch);
    char * base = static_cast<char *>(ggml_backend_buffer_get_base(scratch.get()));
    const ggml_tensor x = *work.x;
    const ggml_tensor y = *work.y;
    ggml_backend_tensor_set(work.x, work.out.data(), 0, n_bytes); // zeros, not what the graph should see
    submit(stream, work.gate_graph);
    work.x->data = base;
    work.y->data = base + n_bytes;
    work.x->buffer = work.y->buffer = scratch.get();
    ggml_backend_tensor_set_async(stream.get(), work.x, work.in.data(), 0, n_bytes);
    submit(stream, work.double_graph);
    ggml_backend_tensor_get_async(stream.get(), work.y, work.out.data(), 0, n_bytes);
    *work.x = x;
    *work.y = y;
    work.y->op = GGML_OP_NONE;
    work.y->src[0] = nullptr;
    work.gate.open();
    ggml_backend_synchronize(stream.get());
    CHECK(work.doubled());
}

TEST(views_and_use_counts_survive_the_snapshot) {
    use_config(plain_config());
    Context c;
    ggml_tensor * x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 64, 4);
    ggml_tensor * w = ggml_new_tensor_1d(c, GGML_TYPE_F32, 64);
    // RMS_NORM + MUL is a pair that ggml-cpu fuses; the view reads its second half.
    ggml_tensor * norm = ggml_mul(c, ggml_rms_norm(c, x, 1e-5f), w);
    ggml_tensor * half = ggml_view_2d(c, norm, 64, 2, norm->nb[1], 2 * norm->nb[1]);
    ggml_tensor * y = ggml_cont(c, half);
    ggml_cgraph * graph = graph_of(c, y);
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    const std::vector<float> in = random_floats(256, 5), scale = random_floats(64, 6);
    ggml_backend_tensor_set(x, in.data(), 0, 1024);
    ggml_backend_tensor_set(w, scale.data(), 0, 256);
    Backend stream = sim_backend();
    REQUIRE(ggml_backend_graph_compute(stream.get(), graph) == GGML_STATUS_SUCCESS);
    std::vector<float> first(128), second(128);
    ggml_backend_tensor_get(y, first.data(), 0, 512);
    Backend cpu(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    REQUIRE(ggml_backend_graph_compute(cpu.get(), graph) == GGML_STATUS_SUCCESS); // on the same memory
    ggml_backend_tensor_get(y, second.data(), 0, 512);
    CHECK(first == second);
    CHECK(first[0] != 0.0f);
}

TEST(device_copies_are_ordered_after_both_streams) {
    use_config(plain_config());
    GatedDouble work;
    Backend from = sim_backend();
    Backend to = sim_backend();
    Context c;
    ggml_tensor * y = ggml_new_tensor_1d(c, GGML_TYPE_F32, n);
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    submit(from, work.gate_graph);
    ggml_backend_tensor_set_async(from.get(), work.x, work.in.data(), 0, n_bytes);
    submit(from, work.double_graph);
    ggml_backend_tensor_copy_async(from.get(), to.get(), work.y, y);
    ggml_backend_tensor_get_async(to.get(), y, work.out.data(), 0, n_bytes);
    work.gate.open();
    ggml_backend_synchronize(to.get());
    CHECK(work.doubled());
}

TEST(copies_between_host_and_device_fall_back_to_synchronous_ones) {
    use_config(plain_config());
    Backend stream = sim_backend();
    Backend cpu(ggml_backend_cpu_init());
    Context host_context, device_context;
    ggml_tensor * host = ggml_new_tensor_1d(host_context, GGML_TYPE_F32, n);
    ggml_tensor * device = ggml_new_tensor_1d(device_context, GGML_TYPE_F32, n);
    Buffer pinned(
        ggml_backend_alloc_ctx_tensors_from_buft(host_context, ggml_backend_dev_host_buffer_type(sim_device())));
    Buffer vram(ggml_backend_alloc_ctx_tensors_from_buft(device_context, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(pinned && vram);
    const std::vector<float> in = random_floats(n, 9);
    std::vector<float> out(n);
    ggml_backend_tensor_set(host, in.data(), 0, n_bytes);
    ggml_backend_tensor_copy_async(cpu.get(), stream.get(), host, device);
    ggml_backend_tensor_memset(host, 0, 0, n_bytes);
    ggml_backend_tensor_copy_async(stream.get(), cpu.get(), device, host);
    ggml_backend_tensor_get(host, out.data(), 0, n_bytes);
    CHECK(in == out);
    CHECK_EQ(counters().used_bytes, n_bytes);
}

TEST(waiting_for_an_event_never_recorded_is_no_wait) {
    use_config(plain_config());
    Backend stream = sim_backend();
    Event event(ggml_backend_event_new(sim_device()));
    ggml_backend_event_wait(stream.get(), event.get());
    ggml_backend_event_synchronize(event.get());
    ggml_backend_synchronize(stream.get());
    CHECK_EQ(counters().n_host_syncs, 2u);
}

TEST(an_event_may_be_freed_while_streams_wait_for_it) {
    use_config(plain_config());
    GatedDouble work;
    Backend a = sim_backend();
    Backend b = sim_backend();
    Event event(ggml_backend_event_new(sim_device()));
    submit(a, work.gate_graph);
    ggml_backend_event_record(event.get(), a.get());
    ggml_backend_event_wait(b.get(), event.get());
    event.reset();
    work.gate.open();
    ggml_backend_synchronize(b.get());
    CHECK_EQ(counters().n_host_syncs, 1u);
}

TEST(freeing_memory_under_running_work_is_counted_and_waits) {
    use_config(plain_config());
    GatedDouble work;
    Backend stream = sim_backend();
    submit(stream, work.gate_graph);
    std::thread opener([&] {
        while (counters().n_frees_in_use == 0)
            std::this_thread::yield();
        work.gate.open();
    });
    work.buffer.reset();
    opener.join();
    CHECK_EQ(counters().n_frees_in_use, 1u);
    CHECK_EQ(counters().used_bytes, 0u);
}

TEST(a_backend_finishes_its_work_before_it_is_freed) {
    use_config(plain_config());
    GatedDouble work;
    {
        Backend stream = sim_backend();
        work.gate.open();
        submit(stream, work.gate_graph);
        ggml_backend_tensor_set_async(stream.get(), work.x, work.in.data(), 0, n_bytes);
    }
    ggml_backend_tensor_get(work.x, work.out.data(), 0, n_bytes);
    CHECK(work.in == work.out);
}

XLM_TEST_MAIN
