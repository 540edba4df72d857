#include "abi_guard.hpp"

#include "errors.hpp"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <memory>
#include <string>

#ifndef XLM_VERSION
#define XLM_VERSION "0.0.0"
#endif

namespace xlm {

namespace {

constexpr const char * kBuiltFor = XLM_GGML_BUILD_ID;

std::string running_version() {
    return std::string(ggml_version()) + " " + ggml_commit();
}

[[noreturn]] void mismatch(const std::string & what) {
    throw ApiError(XLM_ERR_ABI_MISMATCH, "built for ggml " + std::string(kBuiltFor) + ", running with ggml " +
                                             running_version() + ": " + what);
}

struct ContextDeleter {
    void operator()(ggml_context * context) const { ggml_free(context); }
};

struct BackendDeleter {
    void operator()(ggml_backend * backend) const { ggml_backend_free(backend); }
};

// ggml's private header of an object in front of each tensor: 32 bytes on every 64-bit system.
constexpr size_t kObjectBytes = 32;

void check_sizes() {
    if (ggml_tensor_overhead() != kObjectBytes + sizeof(ggml_tensor)) mismatch("ggml_tensor has another size");
    // One node more takes a pointer in nodes and leafs (and whatever the hash table grows by): a
    // graph of size zero is its header alone, up to alignment and the smallest hash table.
    if (ggml_graph_overhead_custom(1, false) < kObjectBytes + sizeof(ggml_cgraph))
        mismatch("ggml_cgraph has another size");
}

void check_graph(const ggml_cgraph & graph, const ggml_tensor * sum, const ggml_tensor * product) {
    auto * handle = const_cast<ggml_cgraph *>(&graph);
    const bool same = graph.n_nodes == ggml_graph_n_nodes(handle) && graph.n_nodes == 2 &&
                      graph.size == ggml_graph_size(handle) && graph.nodes == ggml_graph_nodes(handle) &&
                      graph.nodes[0] == sum && graph.nodes[1] == product && graph.n_leafs == 2;
    if (!same) mismatch("ggml_cgraph has another layout");
    if (ggml_node_get_use_count(&graph, 0) != 2 || ggml_node_get_use_count(&graph, 1) != 0)
        mismatch("use counts lie elsewhere");
}

// (a + b) * (a + b), through the calls and fields this library relies on.
void compute_toy_graph() {
    std::unique_ptr<ggml_context, ContextDeleter> context(ggml_init({size_t{1} << 16, nullptr, false}));
    if (!context) throw std::bad_alloc();
    ggml_tensor * a = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 4);
    ggml_tensor * b = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 4);
    for (int i = 0; i < 4; i++)
        static_cast<float *>(a->data)[i] = static_cast<float>(i), static_cast<float *>(b->data)[i] = 1.0F;
    ggml_tensor * sum = ggml_add(context.get(), a, b);
    ggml_tensor * product = ggml_mul(context.get(), sum, sum);
    ggml_cgraph * graph = ggml_new_graph_custom(context.get(), 8, false);
    ggml_build_forward_expand(graph, product);
    check_graph(*graph, sum, product);
    std::unique_ptr<ggml_backend, BackendDeleter> cpu(ggml_backend_cpu_init());
    if (!cpu) throw std::bad_alloc();
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    ggml_cgraph view = *graph;
    view.n_leafs = 0;
    view.leafs = nullptr;
    if (cpu->iface.graph_compute(cpu.get(), &view) != GGML_STATUS_SUCCESS)
        mismatch("the CPU backend cannot run a graph");
    for (int i = 0; i < 4; i++)
        if (static_cast<float *>(product->data)[i] != static_cast<float>((i + 1) * (i + 1)))
            mismatch("the CPU backend computes something else");
}

} // namespace

void check_abi() {
    if (running_version() != kBuiltFor)
        mismatch("install the llama-cpp-python this release names, or build this library against yours");
    if (ggml_backend_cpu_reg()->api_version != GGML_BACKEND_API_VERSION) mismatch("another backend API version");
    check_sizes();
    compute_toy_graph();
}

const char * build_info() {
    static const std::string line = std::string("xlm ") + XLM_VERSION + ", built for ggml " + kBuiltFor;
    return line.c_str();
}

} // namespace xlm
