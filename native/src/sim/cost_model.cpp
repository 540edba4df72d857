#include "cost_model.hpp"

#include <algorithm>

namespace xlm::sim {

namespace {

double count(const ggml_tensor & tensor) {
    return static_cast<double>(ggml_nelements(&tensor));
}

// Without the gaps of a strided view: only what is read counts.
double bytes_of(const ggml_tensor & tensor) {
    return count(tensor) * static_cast<double>(ggml_type_size(tensor.type)) /
           static_cast<double>(ggml_blck_size(tensor.type));
}

double bytes_of_all(const ggml_tensor & op) {
    double sum = bytes_of(op);
    for (const ggml_tensor * src : op.src)
        sum += src ? bytes_of(*src) : 0;
    return sum;
}

OpCost mul_mat_cost(const ggml_tensor & op) {
    return {2.0 * count(op) * static_cast<double>(op.src[0]->ne[0]), bytes_of_all(op)};
}

// Each expert that any token uses is read once.
OpCost mul_mat_id_cost(const ggml_tensor & op) {
    const ggml_tensor & experts = *op.src[0];
    const double n_experts = static_cast<double>(experts.ne[2]);
    const double n_used = std::min(n_experts, count(*op.src[2]));
    const double bytes = bytes_of(experts) / n_experts * n_used + bytes_of(*op.src[1]) + bytes_of(op);
    return {2.0 * count(op) * static_cast<double>(experts.ne[0]), bytes};
}

OpCost flash_attn_cost(const ggml_tensor & op) {
    const ggml_tensor & q = *op.src[0];
    const ggml_tensor & k = *op.src[1];
    const ggml_tensor & v = *op.src[2];
    const double pairs = static_cast<double>(q.ne[1] * q.ne[2] * q.ne[3]) * static_cast<double>(k.ne[1]);
    return {2.0 * pairs * static_cast<double>(k.ne[0] + v.ne[0]), bytes_of_all(op)};
}

} // namespace

OpCost op_cost(const ggml_tensor & op) {
    constexpr double flops_per_element = 5; // norms, activations, ropes: bandwidth decides, not this number
    switch (op.op) {
    case GGML_OP_MUL_MAT: return mul_mat_cost(op);
    case GGML_OP_MUL_MAT_ID: return mul_mat_id_cost(op);
    case GGML_OP_FLASH_ATTN_EXT: return flash_attn_cost(op);
    case GGML_OP_GET_ROWS: return {0, 2 * bytes_of(op)};         // only the rows, not the table
    case GGML_OP_SET_ROWS: return {0, 2 * bytes_of(*op.src[0])}; // the same
    case GGML_OP_CPY:
    case GGML_OP_CONT:
    case GGML_OP_DUP: return {0, bytes_of(op) + bytes_of(*op.src[0])};
    default: return {flops_per_element * count(op), bytes_of_all(op)};
    }
}

double op_ns(const xlm_sim_config & config, const ggml_tensor & op) {
    if (ggml_op_is_empty(op.op)) return 0;
    const OpCost cost = op_cost(op);
    const double busy_s = std::max(cost.flops / config.compute_flops_per_s, cost.bytes / config.memory_bytes_per_s);
    return busy_s * 1e9 + config.op_launch_ns;
}

ns_t graph_ns(const xlm_sim_config & config, const ggml_cgraph & graph) {
    double sum_ns = config.graph_launch_ns;
    for (int i = 0; i < graph.n_nodes; i++)
        sum_ns += op_ns(config, *graph.nodes[i]);
    return static_cast<ns_t>(sum_ns);
}

ns_t device_copy_ns(const xlm_sim_config & config, uint64_t bytes) {
    const double busy_ns = 2.0 * static_cast<double>(bytes) / config.memory_bytes_per_s * 1e9;
    return static_cast<ns_t>(busy_ns + config.op_launch_ns);
}

uint64_t count_ops(const ggml_cgraph & graph) {
    uint64_t n_ops = 0;
    for (int i = 0; i < graph.n_nodes; i++)
        n_ops += ggml_op_is_empty(graph.nodes[i]->op) ? 0 : 1;
    return n_ops;
}

} // namespace xlm::sim
