// Device lost: errors instead of aborts and hangs, and a restored device that works.
#include "sim_fixture.hpp"

using namespace xlm::test;

namespace {

struct Double {
    Context context;
    ggml_tensor * x = ggml_new_tensor_1d(context, GGML_TYPE_F32, 16);
    ggml_tensor * y = ggml_scale(context, x, 2.0f);
    ggml_cgraph * graph = graph_of(context, y);
    Buffer buffer{ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_dev_buffer_type(sim_device()))};
    std::vector<float> in = random_floats(16, 1);

    Double() { REQUIRE(buffer); }
    void upload() const { ggml_backend_tensor_set(x, in.data(), 0, 64); }
    std::vector<float> download(ggml_tensor * tensor) const {
        std::vector<float> out(16, -1.0f);
        ggml_backend_tensor_get(tensor, out.data(), 0, 64);
        return out;
    }
};

void run_in(uint32_t mode, void (*body)()) {
    xlm_sim_config config = plain_config();
    config.mode = mode;
    use_config(config);
    body();
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK);
}

void loss_refuses_work() {
    Double work;
    Backend stream = sim_backend();
    Event event(ggml_backend_event_new(sim_device()));
    CHECK_EQ(xlm_sim_lose_device(1), XLM_OK);
    CHECK_EQ(counters().lost, 0u);
    CHECK_EQ(ggml_backend_graph_compute(stream.get(), work.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(counters().lost, 1u);
    CHECK_EQ(ggml_backend_graph_compute(stream.get(), work.graph), GGML_STATUS_FAILED);
    CHECK_EQ(ggml_backend_graph_compute(stream.get(), work.graph), GGML_STATUS_FAILED);
    CHECK_EQ(counters().n_graphs_failed, 2u);
    std::vector<float> out(16, -1.0f);
    ggml_backend_tensor_set_async(stream.get(), work.x, work.in.data(), 0, 64);
    ggml_backend_tensor_get_async(stream.get(), work.y, out.data(), 0, 64);
    ggml_backend_tensor_copy_async(stream.get(), stream.get(), work.y, work.x);
    ggml_backend_event_record(event.get(), stream.get());
    ggml_backend_event_synchronize(event.get());
    ggml_backend_synchronize(stream.get());
    work.upload();
    ggml_backend_tensor_memset(work.x, 1, 0, 64);
    ggml_backend_buffer_clear(work.buffer.get(), 1);
    CHECK(work.download(work.x) == std::vector<float>(16, -1.0f));
    CHECK(out == std::vector<float>(16, -1.0f));
    CHECK_EQ(counters().n_dropped, 7u);
    CHECK_EQ(counters().n_h2d, 0u);
    CHECK(!sim_buffer(100));
}

} // namespace

TEST(exact_mode_refuses_work_when_lost) {
    run_in(XLM_SIM_EXACT, loss_refuses_work);
}
TEST(modelled_mode_refuses_work_when_lost) {
    run_in(XLM_SIM_MODELLED, loss_refuses_work);
}

TEST(work_accepted_before_the_loss_completes) {
    use_config(plain_config());
    Double work;
    Gate gate;
    Context c;
    ggml_tensor * held = gate.tensor(c, work.x);
    ggml_cgraph * gate_graph = graph_of(c, held);
    Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_dev_buffer_type(sim_device())));
    REQUIRE(buffer);
    work.upload();
    Backend stream = sim_backend();
    std::vector<float> out(16);
    CHECK_EQ(ggml_backend_graph_compute_async(stream.get(), gate_graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(ggml_backend_graph_compute_async(stream.get(), work.graph), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get_async(stream.get(), work.y, out.data(), 0, 64);
    CHECK_EQ(xlm_sim_lose_device(0), XLM_OK);
    gate.open();
    ggml_backend_synchronize(stream.get());
    for (size_t i = 0; i < out.size(); i++)
        CHECK_EQ(out[i], 2.0f * work.in[i]);
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK);
}

TEST(a_restored_device_works_and_remembers_nothing) {
    use_config(plain_config());
    Double work;
    work.upload();
    CHECK_EQ(xlm_sim_lose_device(0), XLM_OK);
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK);
    CHECK_EQ(counters().lost, 0u);
    CHECK(work.download(work.x) == std::vector<float>(16, 0.0f));
    work.upload();
    Backend stream = sim_backend();
    CHECK_EQ(ggml_backend_graph_compute(stream.get(), work.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(work.download(work.y)[3], 2.0f * work.in[3]);
    CHECK(sim_buffer(100));
}

TEST(every_loss_is_counted_once_and_never_forgotten) {
    use_config(plain_config());
    Double work;
    Backend stream = sim_backend();
    const uint64_t before = counters().n_losses;
    CHECK_EQ(xlm_sim_lose_device(0), XLM_OK);
    CHECK_EQ(xlm_sim_lose_device(0), XLM_OK); // the same one
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK);
    CHECK_EQ(counters().n_losses, before + 1);
    CHECK_EQ(xlm_sim_lose_device(1), XLM_OK);
    work.upload();
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK); // it never came to that: nothing is counted, nothing forgotten
    CHECK_EQ(counters().n_losses, before + 1);
    CHECK(work.download(work.x) == work.in);
    CHECK_EQ(xlm_sim_lose_device(1), XLM_OK);
    CHECK_EQ(ggml_backend_graph_compute(stream.get(), work.graph), GGML_STATUS_SUCCESS);
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK);
    CHECK_EQ(xlm_sim_reset_counters(), XLM_OK);
    CHECK_EQ(counters().n_losses, before + 2);
}

TEST(restoring_a_healthy_device_changes_nothing) {
    use_config(plain_config());
    Double work;
    work.upload();
    CHECK_EQ(xlm_sim_restore_device(), XLM_OK);
    CHECK(work.download(work.x) == work.in);
}

XLM_TEST_MAIN
