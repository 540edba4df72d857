#include "classify.hpp"

#include <cctype>

namespace xlm {

namespace {

enum class Match { prefix, contains, suffix };

struct Rule {
    Match match;
    std::string_view text;
    xlm_sublayer_kind kind;
};

// First match wins, so the narrow rules stand before the wide ones
// (ffn_gate_inp is a router, ffn_gate_exps an expert, ffn_gate a plain FFN).
constexpr Rule kRules[] = {
    // looked up by row on the host
    {Match::prefix, "token_embd.", XLM_KIND_LOOKUP},
    {Match::prefix, "position_embd", XLM_KIND_LOOKUP},
    {Match::prefix, "token_types", XLM_KIND_LOOKUP},
    {Match::prefix, "per_layer_token_embd", XLM_KIND_LOOKUP},
    {Match::prefix, "nextn.embed_tokens", XLM_KIND_LOOKUP},
    {Match::contains, "tid2eid", XLM_KIND_LOOKUP},
    // small: never worth a cut
    {Match::suffix, ".bias", XLM_KIND_SMALL},
    {Match::suffix, ".scale", XLM_KIND_SMALL},
    {Match::suffix, ".gamma", XLM_KIND_SMALL},
    {Match::contains, "norm", XLM_KIND_SMALL},
    {Match::contains, "_ln.", XLM_KIND_SMALL},
    {Match::prefix, "exp_probs_b", XLM_KIND_SMALL},
    {Match::prefix, "ffn_gate_inp", XLM_KIND_SMALL},
    {Match::contains, "sinks", XLM_KIND_SMALL},
    {Match::prefix, "rope_", XLM_KIND_SMALL},
    {Match::prefix, "ln1.", XLM_KIND_SMALL},
    {Match::prefix, "ln2.", XLM_KIND_SMALL},
    {Match::prefix, "ls1.", XLM_KIND_SMALL},
    {Match::prefix, "ls2.", XLM_KIND_SMALL},
    {Match::prefix, "layer_output_scale", XLM_KIND_SMALL},
    {Match::prefix, "out_scale", XLM_KIND_SMALL},
    {Match::prefix, "per_dim_", XLM_KIND_SMALL},
    // per-layer extras of Gemma 3n and relatives
    {Match::prefix, "inp_gate", XLM_KIND_EXTRAS},
    {Match::prefix, "proj.", XLM_KIND_EXTRAS},
    {Match::prefix, "ple_", XLM_KIND_EXTRAS},
    {Match::prefix, "altup_", XLM_KIND_EXTRAS},
    {Match::prefix, "laurel_", XLM_KIND_EXTRAS},
    {Match::prefix, "per_layer_model_proj", XLM_KIND_EXTRAS},
    // mixture of experts
    {Match::contains, "_shexp", XLM_KIND_SHARED_EXPERTS},
    {Match::contains, "_exps", XLM_KIND_EXPERTS},
    {Match::contains, "_chexps", XLM_KIND_EXPERTS},
    // mixers of every family
    {Match::prefix, "attn", XLM_KIND_ATTENTION},
    {Match::prefix, "self_attn", XLM_KIND_ATTENTION},
    {Match::prefix, "cross_attn", XLM_KIND_ATTENTION},
    {Match::prefix, "vis_attn", XLM_KIND_ATTENTION},
    {Match::prefix, "hc_attn", XLM_KIND_ATTENTION},
    {Match::prefix, "indexer", XLM_KIND_ATTENTION},
    {Match::prefix, "ssm_", XLM_KIND_ATTENTION},
    {Match::prefix, "shortconv", XLM_KIND_ATTENTION},
    {Match::prefix, "time_mix_", XLM_KIND_ATTENTION},
    {Match::prefix, "linear_pos", XLM_KIND_ATTENTION},
    {Match::prefix, "pos_bias_", XLM_KIND_ATTENTION},
    {Match::prefix, "conv_", XLM_KIND_ATTENTION},
    // feed-forward
    {Match::prefix, "ffn", XLM_KIND_FFN},
    {Match::prefix, "hc_ffn", XLM_KIND_FFN},
    {Match::prefix, "channel_mix_", XLM_KIND_FFN},
    {Match::prefix, "vis_gate", XLM_KIND_FFN},
    {Match::prefix, "vis_up", XLM_KIND_FFN},
    {Match::prefix, "vis_down", XLM_KIND_FFN},
    {Match::prefix, "nextn.", XLM_KIND_OUTPUT},
};

bool matches(const Rule & rule, std::string_view name) {
    const size_t at = name.find(rule.text);
    if (at == std::string_view::npos) return false;
    if (rule.match == Match::contains) return true;
    if (rule.match == Match::prefix) return at == 0;
    return name.size() >= rule.text.size() && name.rfind(rule.text) == name.size() - rule.text.size();
}

// Reads digits at `at`; returns the position behind them, or `at` when there are none.
size_t read_number(std::string_view text, size_t at, int32_t & value) {
    size_t end = at;
    int64_t number = 0;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) && number < 1000000)
        number = number * 10 + (text[end++] - '0');
    if (end > at) value = static_cast<int32_t>(number);
    return end;
}

// Splits "v.blk.3.attn_q.weight" into tower "v.", layer 3 and "attn_q.weight".
std::string_view split_layer(std::string_view name, TensorClass & result) {
    const size_t at = name.find("blk.");
    if (at == std::string_view::npos) return name;
    int32_t layer = -1;
    const size_t end = read_number(name, at + 4, layer);
    if (layer < 0 || end >= name.size() || name[end] != '.') return name;
    result.tower = std::string(name.substr(0, at));
    result.layer = layer;
    return name.substr(end + 1);
}

// Parts of a vision (or audio) tower outside of its layers, by the names libmtmd knows.
constexpr std::string_view kTowers[] = {"v.", "mm.", "a.", "resampler.", "adapter."};

// "mm.0.weight" is of the tower "mm.". Empty: of the language model, or inside a layer.
std::string_view tower_of(std::string_view name, const TensorClass & cls) {
    if (cls.layer >= 0) return {};
    for (std::string_view tower : kTowers)
        if (name.rfind(tower, 0) == 0) return tower;
    return {};
}

bool is_small(std::string_view base) {
    for (const Rule & rule : kRules)
        if (rule.kind == XLM_KIND_SMALL && matches(rule, base)) return true;
    return false;
}

} // namespace

TensorClass classify_weight(std::string_view name) {
    TensorClass result;
    const std::string_view base = split_layer(name, result);
    if (const std::string_view tower = tower_of(name, result); !tower.empty()) {
        result.tower = std::string(tower);
        result.kind = is_small(name.substr(tower.size())) ? XLM_KIND_SMALL : XLM_KIND_PROJECTOR;
        return result;
    }
    for (const Rule & rule : kRules) {
        if (!matches(rule, base)) continue;
        result.kind = rule.kind;
        return result;
    }
    result.kind = result.layer >= 0 ? XLM_KIND_FFN : XLM_KIND_OUTPUT;
    return result;
}

bool is_token_embedding(std::string_view name) {
    return name == "token_embd.weight";
}

bool is_output_matrix(std::string_view name) {
    return name == "output.weight";
}

int32_t state_layer(std::string_view name) {
    const size_t at = name.rfind("_l");
    int32_t layer = -1;
    if (at == std::string_view::npos) return layer;
    read_number(name, at + 2, layer);
    return layer;
}

} // namespace xlm
