#include "experts_pass.hpp"

#include <cstring>

namespace xlm {

namespace {

void put(ggml_tensor * tensor, const PassPlaces & places, const void * data) {
    tensor->data = const_cast<void *>(data);
    tensor->buffer = places.buffer;
}

// The memory of `tensor` as rows, one after another.
ggml_tensor * as_rows(ggml_context * context, const ggml_tensor & tensor, const PassPlaces & places) {
    ggml_tensor * rows = ggml_new_tensor_2d(context, tensor.type, tensor.ne[0], tensor.ne[1] * tensor.ne[2]);
    rows->nb[1] = tensor.nb[1];
    rows->nb[2] = rows->nb[3] = rows->nb[1] * static_cast<size_t>(rows->ne[1]);
    if (tensor.ne[1] == 1) rows->nb[1] = tensor.nb[2], rows->nb[2] = rows->nb[3] = tensor.nb[3];
    put(rows, places, tensor.data);
    rows->buffer = tensor.buffer;
    return rows;
}

ggml_tensor * index(ggml_context * context, const PassPlaces & places, const int32_t * data, int64_t ne0, int64_t ne1) {
    ggml_tensor * tensor = ggml_new_tensor_2d(context, GGML_TYPE_I32, ne0, ne1);
    put(tensor, places, data);
    return tensor;
}

void append(ggml_cgraph * graph, ggml_tensor * node) {
    node->flags |= GGML_TENSOR_FLAG_COMPUTE; // as ggml_build_forward_expand() marks what is to be done
    graph->nodes[graph->n_nodes++] = node;
}

} // namespace

void append_pass(ggml_context * context, ggml_cgraph * graph, const ggml_tensor & matmul, ggml_tensor & matrix,
                 const PassPlaces & places) {
    const int64_t n = places.n_pairs;
    ggml_tensor * gathered =
        ggml_get_rows(context, as_rows(context, *matmul.src[1], places), index(context, places, places.sources, n, 1));
    put(gathered, places, places.rows);
    ggml_tensor * columns = ggml_reshape_3d(context, gathered, gathered->ne[0], 1, n);
    put(columns, places, places.rows);
    ggml_tensor * product = ggml_mul_mat_id(context, &matrix, columns, index(context, places, places.experts, 1, n));
    std::memcpy(product->op_params, matmul.op_params, sizeof product->op_params); // precision
    put(product, places, places.results);
    ggml_tensor * flat = ggml_reshape_2d(context, product, product->ne[0], n);
    put(flat, places, places.results);
    ggml_tensor * target = as_rows(context, matmul, places);
    ggml_tensor * scattered = ggml_set_rows(context, target, flat, index(context, places, places.targets, n, 1));
    put(scattered, places, target->data);
    scattered->buffer = target->buffer;
    append(graph, gathered);
    append(graph, columns);
    append(graph, product);
    append(graph, flat);
    append(graph, scattered);
}

} // namespace xlm
