// The mixture of experts of the toy model, in the forms that llama.cpp's architectures build.
#pragma once

#include "ggml.h"

#include <string>

namespace toy {

// What the forms differ in; `n_experts` 0 is a dense model.
struct Moe {
    int n_experts = 0, n_used = 2;
    bool fused = false;        // gate and up are one matrix
    bool biases = false;       // ADD_ID behind every matrix
    bool scales = false;       // GET_ROWS of a scale by expert
    bool shared = false;       // a shared expert beside the others
    bool weight_first = false; // the input is weighted, not the result
    bool gate = true;          // false: up and down only
    bool two_sets = false;     // a second set of experts, chosen apart
};

struct MoeLayer {
    ggml_tensor *router = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
    ggml_tensor *up_bias = nullptr, *down_bias = nullptr, *up_scale = nullptr;
    ggml_tensor *shared_up = nullptr, *shared_down = nullptr;
    ggml_tensor *other_up = nullptr, *other_down = nullptr;
};

constexpr int kExpertFfn = 64;

// `make(type, ne0, ne1, ne2, name)` makes and names a weight.
template <typename Make>
MoeLayer make_moe(const Moe & form, int n_embd, const std::string & prefix, Make make) {
    const int n = form.n_experts, up_rows = form.fused ? 2 * kExpertFfn : kExpertFfn;
    MoeLayer layer;
    layer.router = make(GGML_TYPE_F32, n_embd, n, 1, prefix + "ffn_gate_inp.weight");
    if (form.gate && !form.fused)
        layer.gate = make(GGML_TYPE_Q8_0, n_embd, kExpertFfn, n, prefix + "ffn_gate_exps.weight");
    layer.up = make(GGML_TYPE_Q8_0, n_embd, up_rows, n,
                    prefix + (form.fused ? "ffn_gate_up_exps.weight" : "ffn_up_exps.weight"));
    layer.down = make(GGML_TYPE_F16, kExpertFfn, n_embd, n, prefix + "ffn_down_exps.weight");
    if (form.biases) {
        layer.up_bias = make(GGML_TYPE_F32, up_rows, n, 1, prefix + "ffn_up_exps.bias");
        layer.down_bias = make(GGML_TYPE_F32, n_embd, n, 1, prefix + "ffn_down_exps.bias");
    }
    if (form.scales) layer.up_scale = make(GGML_TYPE_F32, n, 1, 1, prefix + "ffn_up_exps.scale");
    if (form.two_sets) {
        layer.other_up = make(GGML_TYPE_F16, n_embd, kExpertFfn, n, prefix + "ffn_up_chexps.weight");
        layer.other_down = make(GGML_TYPE_F16, kExpertFfn, n_embd, n, prefix + "ffn_down_chexps.weight");
    }
    if (form.shared) {
        layer.shared_up = make(GGML_TYPE_F16, n_embd, kExpertFfn, 1, prefix + "ffn_up_shexp.weight");
        layer.shared_down = make(GGML_TYPE_F16, kExpertFfn, n_embd, 1, prefix + "ffn_down_shexp.weight");
    }
    return layer;
}

inline ggml_tensor * scaled_by_expert(ggml_context * context, ggml_tensor * x, ggml_tensor * scale, ggml_tensor * ids,
                                      int n_tokens) {
    const int64_t n = scale->ne[0];
    ggml_tensor * all = ggml_repeat_4d(context, ggml_reshape_3d(context, scale, 1, n, 1), 1, n, n_tokens, 1);
    return ggml_mul(context, x, ggml_get_rows(context, all, ids));
}

// x is [n_embd, n_tokens], normed.
inline ggml_tensor * moe_ffn(ggml_context * context, ggml_cgraph * graph, const Moe & form, const MoeLayer & layer,
                             ggml_tensor * x) {
    const int64_t n_embd = x->ne[0], n_tokens = x->ne[1];
    ggml_tensor * probs = ggml_soft_max(context, ggml_mul_mat(context, layer.router, x));
    ggml_tensor * ids = ggml_argsort_top_k(context, probs, form.n_used);
    ggml_tensor * weights = ggml_get_rows(context, ggml_reshape_3d(context, probs, 1, form.n_experts, n_tokens), ids);
    ggml_build_forward_expand(graph, weights);
    ggml_tensor * input = ggml_reshape_3d(context, x, n_embd, 1, n_tokens);
    if (form.weight_first)
        input = ggml_mul(context, ggml_repeat_4d(context, input, n_embd, form.n_used, n_tokens, 1), weights);
    ggml_tensor * up = ggml_mul_mat_id(context, layer.up, input, ids);
    if (layer.up_scale) up = scaled_by_expert(context, up, layer.up_scale, ids, static_cast<int>(n_tokens));
    if (layer.up_bias) up = ggml_add_id(context, up, layer.up_bias, ids);
    ggml_tensor * inner = nullptr;
    if (form.fused) {
        const auto half = [&](int i) {
            return ggml_view_3d(context, up, kExpertFfn, up->ne[1], up->ne[2], up->nb[1], up->nb[2],
                                static_cast<size_t>(i) * kExpertFfn * up->nb[0]);
        };
        ggml_tensor * gate = half(0);
        inner = ggml_swiglu_split(context, gate, half(1));
    } else if (layer.gate) {
        ggml_tensor * gate = ggml_clamp(context, ggml_mul_mat_id(context, layer.gate, input, ids), -4.0F, 4.0F);
        inner = ggml_swiglu_split(context, gate, up);
    } else {
        inner = ggml_sqr(context, ggml_relu(context, up));
    }
    ggml_tensor * down = ggml_mul_mat_id(context, layer.down, inner, ids);
    if (layer.down_bias) down = ggml_add_id(context, down, layer.down_bias, ids);
    if (!form.weight_first) down = ggml_mul(context, down, weights);
    ggml_build_forward_expand(graph, down);
    const auto choice = [&](int k) {
        return ggml_view_2d(context, down, n_embd, n_tokens, down->nb[2], static_cast<size_t>(k) * down->nb[1]);
    };
    ggml_tensor * sum = choice(0);
    for (int k = 1; k < form.n_used; k++)
        sum = ggml_add(context, sum, choice(k));
    if (form.n_used == 1) sum = ggml_cont(context, sum);
    if (layer.other_up) {
        ggml_tensor * least = ggml_argsort_top_k(context, ggml_neg(context, probs), 1);
        ggml_tensor * other = ggml_relu(context, ggml_mul_mat_id(context, layer.other_up, input, least));
        other = ggml_mul_mat_id(context, layer.other_down, other, least);
        sum = ggml_add(context, sum, ggml_reshape_2d(context, other, n_embd, n_tokens));
    }
    if (!layer.shared_up) return sum;
    ggml_tensor * shared = ggml_silu(context, ggml_mul_mat(context, layer.shared_up, x));
    return ggml_add(context, sum, ggml_mul_mat(context, layer.shared_down, shared));
}

} // namespace toy
