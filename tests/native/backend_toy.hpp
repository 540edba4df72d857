// A small transformer in plain ggml calls, run either on the CPU backend or on
// XLM0: the same seed gives the same weights, so results can be compared bit by bit.
#pragma once

#include "backend_check.hpp"
#include "backend_toy_moe.hpp"

#include "xlm/xlm_device.h"
#include "xlm/xlm_sim.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace toy {

constexpr int kEmbd = 64, kHeads = 2, kHeadDim = 32, kFfn = 160, kVocab = 96, kCells = 64;
constexpr int kThreads = 2;

// -- the virtual GPU, loaded by path as in real life ---------------------------------

struct Sim {
    decltype(&xlm_sim_default_config) default_config;
    decltype(&xlm_sim_configure) configure;
    decltype(&xlm_sim_get_counters) get_counters;
    decltype(&xlm_sim_fail_allocations) fail_allocations;
    decltype(&xlm_sim_lose_device) lose_device;
    decltype(&xlm_sim_restore_device) restore_device;

    static const Sim & get() {
        static const Sim sim = load();
        return sim;
    }

    xlm_sim_counters counters() const {
        xlm_sim_counters result{};
        result.struct_size = sizeof result;
        CHECK_EQ(get_counters(&result), XLM_OK);
        return result;
    }

private:
    template <typename T>
    static void find(void * library, const char * name, T & target) {
        target = reinterpret_cast<T>(dlsym(library, name));
        CHECK(target != nullptr);
    }

    static Sim load() {
        void * library = dlopen(XLM_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        CHECK(library != nullptr);
        Sim sim{};
        find(library, "xlm_sim_default_config", sim.default_config);
        find(library, "xlm_sim_configure", sim.configure);
        find(library, "xlm_sim_get_counters", sim.get_counters);
        find(library, "xlm_sim_fail_allocations", sim.fail_allocations);
        find(library, "xlm_sim_lose_device", sim.lose_device);
        find(library, "xlm_sim_restore_device", sim.restore_device);
        return sim;
    }
};

// A `launch_ns` other than 0: no numerics, and each submission to the device takes so long, one after the other.
inline void open_device(const char * inner, uint64_t budget_bytes, uint64_t vram_bytes = 64 << 20,
                        uint64_t launch_ns = 0) {
    xlm_sim_config sim{};
    sim.struct_size = sizeof sim;
    Sim::get().default_config(&sim);
    if (launch_ns > 0) {
        sim.mode = XLM_SIM_MODELLED;
        sim.graph_launch_ns = static_cast<double>(launch_ns);
    }
    sim.vram_bytes = vram_bytes;
    sim.link_bytes_per_s = 0;
    sim.link_latency_ns = 0;
    sim.n_threads = kThreads;
    CHECK_EQ(Sim::get().configure(&sim), XLM_OK);
    xlm_device_config config{};
    config.struct_size = sizeof config;
    config.inner = inner;
    config.inner_library = XLM_SIM_LIBRARY;
    config.n_threads = kThreads;
    config.budget_bytes = budget_bytes;
    if (launch_ns > 0) config.max_sublayers_in_flight_decode = 1;
    const xlm_status status = xlm_device_open(&config);
    if (status != XLM_OK) std::fprintf(stderr, "%s\n", xlm_device_last_error());
    CHECK_EQ(status, XLM_OK);
}

inline xlm_memory memory() {
    xlm_memory result{};
    result.struct_size = sizeof result;
    CHECK_EQ(xlm_device_memory(&result), XLM_OK);
    return result;
}

inline xlm_stats stats() {
    xlm_stats result{};
    result.struct_size = sizeof result;
    CHECK_EQ(xlm_device_stats(&result), XLM_OK);
    return result;
}

inline std::vector<xlm_trace_event> read_trace(uint32_t most, uint64_t & lost) {
    std::vector<xlm_trace_event> events(most);
    events[0].struct_size = sizeof events[0];
    uint32_t count = 0;
    CHECK_EQ(xlm_device_trace_read(events.data(), most, &count, &lost), XLM_OK);
    events.resize(count);
    return events;
}

inline void set_placements(const std::vector<uint8_t> & placement, uint64_t ring_bytes, uint64_t reserve_bytes = 0,
                           const xlm_expert_policy * experts = nullptr) {
    const xlm_tier_schedule tier{sizeof(xlm_tier_schedule), UINT32_MAX, placement.data(), 0, 0};
    const xlm_schedule schedule{sizeof(xlm_schedule),
                                1,
                                &tier,
                                static_cast<uint32_t>(placement.size()),
                                nullptr,
                                ring_bytes,
                                reserve_bytes,
                                7,
                                experts,
                                0,
                                0,
                                0,
                                nullptr,
                                0};
    CHECK_EQ(xlm_device_set_schedule(&schedule), XLM_OK);
}

// Placements for steps of up to `few_tokens`, which keep `few_reserve` free if not 0, and for longer ones.
inline void set_two_tiers(uint32_t few_tokens, const std::vector<uint8_t> & few, const std::vector<uint8_t> & many,
                          uint64_t ring_bytes, uint64_t reserve_bytes = 0, uint64_t few_reserve = 0) {
    const xlm_tier_schedule tiers[] = {{sizeof(xlm_tier_schedule), few_tokens, few.data(), 0, few_reserve},
                                       {sizeof(xlm_tier_schedule), UINT32_MAX, many.data(), 0, 0}};
    xlm_schedule schedule{};
    schedule.struct_size = sizeof schedule;
    schedule.n_tiers = 2;
    schedule.tiers = tiers;
    schedule.n_sublayers = static_cast<uint32_t>(few.size());
    schedule.ring_bytes = ring_bytes;
    schedule.reserve_bytes = reserve_bytes;
    CHECK_EQ(xlm_device_set_schedule(&schedule), XLM_OK);
}

inline void check_books() {
    const xlm_memory now = memory();
    CHECK_EQ(now.used_bytes, Sim::get().counters().used_bytes);
    CHECK_EQ(now.used_bytes, now.resident_bytes + now.kv_bytes + now.ring_bytes + now.scratch_bytes);
    CHECK(now.used_bytes <= now.budget_bytes);
    CHECK_EQ(now.over_budget_events, uint64_t{0});
    CHECK_EQ(Sim::get().counters().n_frees_in_use, uint64_t{0});
}

inline xlm_release set_budget(uint64_t bytes) {
    xlm_release release{};
    release.struct_size = sizeof release;
    CHECK_EQ(xlm_device_set_budget(bytes, 600ULL * 1000000000ULL, &release), XLM_OK);
    CHECK(release.completed);
    return release;
}

// -- the model ---------------------------------------------------------------------------

struct Free {
    void operator()(ggml_context * context) const { ggml_free(context); }
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
    void operator()(ggml_backend * backend) const { ggml_backend_free(backend); }
    void operator()(ggml_gallocr * allocator) const { ggml_gallocr_free(allocator); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

class Model {
public:
    struct Layer {
        ggml_tensor *attn_norm, *q, *k, *v, *o, *ffn_norm, *gate, *up, *down;
        MoeLayer moe;
    };

    Model(bool on_xlm, int n_layers, uint32_t seed, bool tied = false, const Moe & moe = {})
        : moe_form(moe), on_xlm_(on_xlm), random_(seed) {
        context_.reset(ggml_init({ggml_tensor_overhead() * 256, nullptr, true}));
        embedding = make(GGML_TYPE_F16, kEmbd, kVocab, "token_embd.weight");
        for (int il = 0; il < n_layers; il++)
            layers.push_back(make_layer("blk." + std::to_string(il) + "."));
        output_norm = make(GGML_TYPE_F32, kEmbd, 1, "output_norm.weight");
        output = tied ? embedding : make(GGML_TYPE_Q8_0, kEmbd, kVocab, "output.weight");
        load();
    }

    uint32_t id() const { return id_; }
    bool on_xlm() const { return on_xlm_; }
    ggml_backend_buffer_type_t weights_type() const {
        return on_xlm_ ? static_cast<ggml_backend_buffer_type_t>(xlm_device_host_buffer_type())
                       : ggml_backend_cpu_buffer_type();
    }

    ggml_tensor *embedding, *output_norm, *output;
    std::vector<Layer> layers;
    const Moe moe_form;

private:
    ggml_tensor * make(ggml_type type, int64_t ne0, int64_t ne1, const std::string & name) {
        ggml_tensor * tensor = ne1 == 1 ? ggml_new_tensor_1d(context_.get(), type, ne0)
                                        : ggml_new_tensor_2d(context_.get(), type, ne0, ne1);
        ggml_set_name(tensor, name.c_str());
        return tensor;
    }

    ggml_tensor * make_3d(ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, const std::string & name) {
        if (ne2 == 1) return make(type, ne0, ne1, name);
        ggml_tensor * tensor = ggml_new_tensor_3d(context_.get(), type, ne0, ne1, ne2);
        ggml_set_name(tensor, name.c_str());
        return tensor;
    }

    Layer make_layer(const std::string & prefix) {
        Layer layer{};
        layer.attn_norm = make(GGML_TYPE_F32, kEmbd, 1, prefix + "attn_norm.weight");
        layer.q = make(GGML_TYPE_F16, kEmbd, kEmbd, prefix + "attn_q.weight");
        layer.k = make(GGML_TYPE_F16, kEmbd, kEmbd, prefix + "attn_k.weight");
        layer.v = make(GGML_TYPE_Q8_0, kEmbd, kEmbd, prefix + "attn_v.weight");
        layer.o = make(GGML_TYPE_F16, kEmbd, kEmbd, prefix + "attn_output.weight");
        layer.ffn_norm = make(GGML_TYPE_F32, kEmbd, 1, prefix + "ffn_norm.weight");
        if (moe_form.n_experts > 0) {
            layer.moe = make_moe(moe_form, kEmbd, prefix, [this](auto... of) { return make_3d(of...); });
            return layer;
        }
        layer.gate = make(GGML_TYPE_Q8_0, kEmbd, kFfn, prefix + "ffn_gate.weight");
        layer.up = make(GGML_TYPE_F16, kEmbd, kFfn, prefix + "ffn_up.weight");
        layer.down = make(GGML_TYPE_Q8_0, kFfn, kEmbd, prefix + "ffn_down.weight");
        return layer;
    }

    void load() {
        if (on_xlm_) CHECK_EQ(xlm_device_model_begin("toy", &id_), XLM_OK);
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), weights_type()));
        CHECK(buffer_ != nullptr);
        ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        for (ggml_tensor * t = ggml_get_first_tensor(context_.get()); t; t = ggml_get_next_tensor(context_.get(), t))
            fill(t);
        if (on_xlm_) CHECK_EQ(xlm_device_model_end(id_), XLM_OK);
    }

    void fill(ggml_tensor * tensor) {
        std::normal_distribution<float> normal(tensor->ne[1] == 1 ? 1.0F : 0.0F, 0.15F);
        std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
        for (float & value : values)
            value = normal(random_);
        std::vector<char> bytes(ggml_nbytes(tensor));
        if (tensor->type == GGML_TYPE_F32)
            std::memcpy(bytes.data(), values.data(), bytes.size());
        else
            ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, ggml_nrows(tensor), tensor->ne[0],
                                nullptr);
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    }

    bool on_xlm_;
    std::mt19937 random_;
    uint32_t id_ = 0;
    Owned<ggml_context> context_;
    Owned<ggml_backend_buffer> buffer_;
};

// A context: its KV, its backend, and the graphs it builds.
class Context {
public:
    explicit Context(Model & model) : model_(model) {
        if (model.on_xlm()) CHECK_EQ(xlm_device_context_begin(model.id()), XLM_OK);
        make_cache();
        if (model.on_xlm()) CHECK_EQ(xlm_device_context_end(model.id()), XLM_OK);
        auto device = static_cast<ggml_backend_dev_t>(xlm_device_ggml_device());
        backend_.reset(model.on_xlm() ? ggml_backend_dev_init(device, nullptr) : ggml_backend_cpu_init());
        CHECK(backend_ != nullptr);
        if (!model.on_xlm()) ggml_backend_cpu_set_n_threads(backend_.get(), kThreads);
        allocator_.reset(ggml_gallocr_new(state_type()));
    }

    // Logits of every token of the step; empty when the backend reports a failure.
    std::vector<float> step(const std::vector<int32_t> & tokens) {
        Graph graph = build(static_cast<int>(tokens.size()));
        return run(graph, tokens);
    }

    // By the graph of the first such step of so many tokens, as llama.cpp takes its graphs again. The longest first.
    std::vector<float> step_again(const std::vector<int32_t> & tokens) {
        const int n = static_cast<int>(tokens.size());
        CHECK(graphs_.empty() || n <= graphs_.rbegin()->first); // a longer one would move the memory of the others
        if (!graphs_.count(n)) graphs_.emplace(n, build(n));
        return run(graphs_.at(n), tokens);
    }

    // The same tokens `n_times`, by one and the same graph; the logits of the last time.
    std::vector<float> steps(const std::vector<int32_t> & tokens, int n_times) {
        Graph graph = build(static_cast<int>(tokens.size()));
        std::vector<float> logits;
        for (int i = 0; i < n_times; i++)
            logits = run(graph, tokens);
        return logits;
    }

    // Scales all keys in place, as a K-shift rotates them.
    void shift() {
        Owned<ggml_context> context(ggml_init({ggml_tensor_overhead() * 512 + ggml_graph_overhead(), nullptr, true}));
        ggml_cgraph * graph = ggml_new_graph(context.get());
        for (ggml_tensor * k : k_)
            ggml_build_forward_expand(
                graph, ggml_scale_inplace(context.get(), ggml_view_2d(context.get(), k, kEmbd, kCells / 2, k->nb[1], 0),
                                          0.5F));
        CHECK(ggml_gallocr_alloc_graph(allocator_.get(), graph));
        CHECK_EQ(ggml_backend_graph_compute(backend_.get(), graph), GGML_STATUS_SUCCESS);
    }

    // Everything a saved session would hold.
    std::vector<char> cache_bytes() const {
        std::vector<char> result;
        for (const auto * list : {&k_, &v_})
            for (ggml_tensor * tensor : *list) {
                const size_t at = result.size();
                result.resize(at + ggml_nbytes(tensor));
                ggml_backend_tensor_get(tensor, result.data() + at, 0, ggml_nbytes(tensor));
            }
        return result;
    }

    void restore_cache(const std::vector<char> & bytes, int n_past) {
        size_t at = 0;
        for (const auto * list : {&k_, &v_})
            for (ggml_tensor * tensor : *list) {
                ggml_backend_tensor_set(tensor, bytes.data() + at, 0, ggml_nbytes(tensor));
                at += ggml_nbytes(tensor);
            }
        n_past_ = n_past;
    }

    int n_past() const { return n_past_; }
    ggml_status status = GGML_STATUS_SUCCESS;

private:
    struct Graph {
        Owned<ggml_context> context;
        ggml_cgraph * graph;
        ggml_tensor *tokens, *cells, *mask, *logits;
    };

    ggml_backend_buffer_type_t state_type() const {
        auto device = static_cast<ggml_backend_dev_t>(xlm_device_ggml_device());
        return model_.on_xlm() ? ggml_backend_dev_buffer_type(device) : ggml_backend_cpu_buffer_type();
    }

    void make_cache() {
        cache_context_.reset(ggml_init({ggml_tensor_overhead() * 64, nullptr, true}));
        for (size_t il = 0; il < model_.layers.size(); il++) {
            for (auto * list : {&k_, &v_}) {
                list->push_back(ggml_new_tensor_2d(cache_context_.get(), list == &k_ ? GGML_TYPE_F32 : GGML_TYPE_F16,
                                                   kEmbd, kCells));
                ggml_format_name(list->back(), "cache_%c_l%d", list == &k_ ? 'k' : 'v', static_cast<int>(il));
            }
        }
        cache_.reset(ggml_backend_alloc_ctx_tensors_from_buft(cache_context_.get(), state_type()));
        CHECK(cache_ != nullptr);
        ggml_backend_buffer_clear(cache_.get(), 0);
    }

    ggml_tensor * scaled_norm(ggml_context * context, ggml_tensor * x, ggml_tensor * weight) {
        return ggml_mul(context, ggml_rms_norm(context, x, 1e-5F), weight);
    }

    ggml_tensor * heads_of(ggml_context * context, ggml_tensor * cache) {
        ggml_tensor * view = ggml_view_3d(context, cache, kHeadDim, kHeads, kCells,
                                          ggml_row_size(cache->type, kHeadDim), cache->nb[1], 0);
        return ggml_permute(context, view, 0, 2, 1, 3);
    }

    // A view, as llama.cpp writes through one: it may end the segment before the one that writes.
    ggml_tensor * cells_of(ggml_context * context, ggml_tensor * cache) {
        return ggml_reshape_2d(context, cache, kEmbd, kCells);
    }

    ggml_tensor * attention(Graph & g, const Model::Layer & layer, size_t il, ggml_tensor * x, int n) {
        ggml_context * context = g.context.get();
        ggml_tensor * q = ggml_mul_mat(context, layer.q, x);
        ggml_tensor * k = ggml_mul_mat(context, layer.k, x);
        ggml_tensor * v = ggml_mul_mat(context, layer.v, x);
        ggml_build_forward_expand(g.graph, q); // as llama.cpp does: what touches the cache stands side by side
        ggml_build_forward_expand(g.graph, v);
        ggml_build_forward_expand(g.graph, ggml_set_rows(context, cells_of(context, k_[il]), k, g.cells));
        ggml_build_forward_expand(g.graph, ggml_set_rows(context, cells_of(context, v_[il]), v, g.cells));
        q = ggml_permute(context, ggml_reshape_3d(context, q, kHeadDim, kHeads, n), 0, 2, 1, 3);
        ggml_tensor * keys = heads_of(context, k_[il]);
        ggml_tensor * scores = ggml_soft_max_ext(context, ggml_mul_mat(context, keys, q), g.mask, 0.2F, 0.0F);
        ggml_tensor * values = ggml_cont(context, ggml_transpose(context, heads_of(context, v_[il])));
        ggml_tensor * mixed = ggml_permute(context, ggml_mul_mat(context, values, scores), 0, 2, 1, 3);
        return ggml_mul_mat(context, layer.o, ggml_cont_2d(context, mixed, kEmbd, n));
    }

    std::vector<float> run(Graph & graph, const std::vector<int32_t> & tokens) {
        const int n = static_cast<int>(tokens.size());
        ggml_backend_tensor_set(graph.tokens, tokens.data(), 0, tokens.size() * sizeof(int32_t));
        std::vector<int64_t> cells(tokens.size());
        for (int i = 0; i < n; i++)
            cells[static_cast<size_t>(i)] = (n_past_ + i) % kCells;
        ggml_backend_tensor_set(graph.cells, cells.data(), 0, cells.size() * sizeof(int64_t));
        set_mask(graph.mask, n);
        if (model_.on_xlm()) CHECK_EQ(xlm_device_begin_step(static_cast<uint32_t>(n)), XLM_OK);
        status = ggml_backend_graph_compute(backend_.get(), graph.graph);
        if (status != GGML_STATUS_SUCCESS) return {};
        n_past_ += n;
        std::vector<float> logits(static_cast<size_t>(ggml_nelements(graph.logits)));
        ggml_backend_tensor_get(graph.logits, logits.data(), 0, ggml_nbytes(graph.logits));
        return logits;
    }

    Graph build(int n) {
        Graph g{Owned<ggml_context>(ggml_init({ggml_tensor_overhead() * 1024 + ggml_graph_overhead(), nullptr, true})),
                nullptr,
                nullptr,
                nullptr,
                nullptr,
                nullptr};
        ggml_context * context = g.context.get();
        g.graph = ggml_new_graph(context);
        g.tokens = input(context, ggml_new_tensor_1d(context, GGML_TYPE_I32, n));
        g.cells = input(context, ggml_new_tensor_1d(context, GGML_TYPE_I64, n));
        g.mask = input(context, ggml_new_tensor_2d(context, GGML_TYPE_F32, kCells, n));
        ggml_tensor * x = ggml_get_rows(context, model_.embedding, g.tokens);
        for (size_t il = 0; il < model_.layers.size(); il++) {
            const Model::Layer & layer = model_.layers[il];
            x = ggml_add(context, x, attention(g, layer, il, scaled_norm(context, x, layer.attn_norm), n));
            ggml_tensor * y = scaled_norm(context, x, layer.ffn_norm);
            if (model_.moe_form.n_experts > 0) {
                x = ggml_add(context, x, moe_ffn(context, g.graph, model_.moe_form, layer.moe, y));
                continue;
            }
            y = ggml_mul(context, ggml_silu(context, ggml_mul_mat(context, layer.gate, y)),
                         ggml_mul_mat(context, layer.up, y));
            x = ggml_add(context, x, ggml_mul_mat(context, layer.down, y));
        }
        g.logits = ggml_mul_mat(context, model_.output, scaled_norm(context, x, model_.output_norm));
        ggml_set_output(g.logits);
        ggml_build_forward_expand(g.graph, g.logits);
        CHECK(ggml_gallocr_alloc_graph(allocator_.get(), g.graph));
        return g;
    }

    static ggml_tensor * input(ggml_context *, ggml_tensor * tensor) {
        ggml_set_input(tensor);
        return tensor;
    }

    void set_mask(ggml_tensor * mask, int n) {
        std::vector<float> values(static_cast<size_t>(kCells) * static_cast<size_t>(n), -INFINITY);
        for (int i = 0; i < n; i++)
            for (int c = 0; c <= std::min(n_past_ + i, kCells - 1); c++)
                values[static_cast<size_t>(i * kCells + c)] = 0.0F;
        ggml_backend_tensor_set(mask, values.data(), 0, values.size() * sizeof(float));
    }

    Model & model_;
    int n_past_ = 0;
    std::map<int, Graph> graphs_; // of step_again(), by number of tokens
    Owned<ggml_context> cache_context_;
    Owned<ggml_backend_buffer> cache_;
    std::vector<ggml_tensor *> k_, v_;
    Owned<ggml_backend> backend_;
    Owned<ggml_gallocr> allocator_;
};

inline std::vector<int32_t> some_tokens(std::mt19937 & random, int n) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t & token : tokens)
        token = static_cast<int32_t>(random() % kVocab);
    return tokens;
}

inline bool same_bits(const std::vector<float> & a, const std::vector<float> & b) {
    return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The same model on the CPU and on XLM0.
struct Pair {
    Pair(uint32_t seed, int n_layers, bool tied, const Moe & form = {})
        : plain_model(false, n_layers, seed, tied, form), model(true, n_layers, seed, tied, form), plain(plain_model),
          device(model) {}

    // One step on both; true when all bits agree.
    bool step(std::mt19937 & random, int n) {
        const std::vector<int32_t> tokens = some_tokens(random, n);
        return same_bits(plain.step(tokens), device.step(tokens));
    }
    bool step_again(std::mt19937 & random, int n) {
        const std::vector<int32_t> tokens = some_tokens(random, n);
        return same_bits(plain.step_again(tokens), device.step_again(tokens));
    }
    bool same_caches() const { return plain.cache_bytes() == device.cache_bytes(); }

    Model plain_model, model;
    Context plain, device;
};

} // namespace toy
