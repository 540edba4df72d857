// What tests of the virtual GPU share: a tensor context, the loaded plugin, small graphs.
#pragma once

#include "check.hpp"

#include "xlm/xlm_sim.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <vector>

namespace xlm::test {

// A ggml context without data.
class Context {
public:
    Context() : context_(ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead() * 8, nullptr, true})) {}
    ~Context() { ggml_free(context_); }
    Context(const Context &) = delete;
    Context & operator=(const Context &) = delete;
    operator ggml_context *() const { return context_; }

private:
    ggml_context * context_;
};

struct BackendFree {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct BufferFree {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
struct EventFree {
    void operator()(ggml_backend_event_t event) const { ggml_backend_event_free(event); }
};
using Backend = std::unique_ptr<ggml_backend, BackendFree>;
using Buffer = std::unique_ptr<ggml_backend_buffer, BufferFree>;
using Event = std::unique_ptr<ggml_backend_event, EventFree>;

inline ggml_cgraph * graph_of(ggml_context * context, ggml_tensor * result) {
    ggml_cgraph * graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, result);
    return graph;
}

inline std::vector<float> random_floats(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> values(n);
    for (float & value : values)
        value = uniform(random);
    return values;
}

// Exact mode without throttling: nothing in it depends on time.
inline xlm_sim_config plain_config() {
    xlm_sim_config config{};
    xlm_sim_default_config(&config);
    config.vram_bytes = 8 << 20;
    config.link_bytes_per_s = 0;
    config.n_threads = 1;
    return config;
}

inline xlm_sim_counters counters() {
    xlm_sim_counters c{};
    c.struct_size = sizeof c;
    CHECK_EQ(xlm_sim_get_counters(&c), XLM_OK);
    return c;
}

#ifdef XLM_SIM_LIBRARY
// The plugin, loaded as llama.cpp loads it.
inline ggml_backend_dev_t sim_device() {
    static ggml_backend_reg_t registry = ggml_backend_load(XLM_SIM_LIBRARY);
    REQUIRE(registry);
    return ggml_backend_reg_dev_get(registry, 0);
}

inline Backend sim_backend() {
    Backend backend(ggml_backend_dev_init(sim_device(), nullptr));
    REQUIRE(backend);
    return backend;
}

inline Buffer sim_buffer(size_t bytes) {
    return Buffer(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(sim_device()), bytes));
}

inline void use_config(const xlm_sim_config & config) {
    REQUIRE(xlm_sim_configure(&config) == XLM_OK);
    xlm_sim_reset_counters();
}
#endif

// An op that holds up the stream that computes it, until opened: order without clocks.
class Gate {
public:
    void open() { opened_.set_value(); }
    ggml_tensor * tensor(ggml_context * context, ggml_tensor * input) {
        return ggml_map_custom1(context, input, wait, 1, this);
    }

private:
    static void wait(ggml_tensor *, const ggml_tensor *, int, int, void * gate) {
        static_cast<Gate *>(gate)->open_.wait();
    }
    std::promise<void> opened_;
    std::shared_future<void> open_ = opened_.get_future().share();
};

} // namespace xlm::test
