#include "model_file.hpp"

#include "ggml.h"
#include "gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

namespace kit {

namespace {

// xorshift64*: weights need to look random, fast (a 2 GB model in seconds).
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
    uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Dull;
    }
    // Roughly normal, sum of four uniforms, standard deviation 1.
    float normal() {
        const uint64_t bits = next();
        float sum = 0.0f;
        for (int i = 0; i < 4; i++)
            sum += static_cast<float>((bits >> (16 * i)) & 0xFFFF) / 65536.0f - 0.5f;
        return sum * 1.7320508f; // variance of four uniforms: 1/3
    }
    void bytes(uint8_t * out, size_t n) {
        for (size_t i = 0; i < n; i += 8) {
            const uint64_t bits = next();
            std::memcpy(out + i, &bits, std::min<size_t>(8, n - i));
        }
    }

private:
    uint64_t state_;
};

// Random blocks of the plain formats: one half-precision scale, then the quants.
// `unit` is the standard deviation of the uniform quants, so that values have deviation `sigma`.
void fill_blocks(uint8_t * out, size_t n_blocks, size_t block_bytes, float scale, Random & random) {
    const ggml_fp16_t half = ggml_fp32_to_fp16(scale);
    random.bytes(out, n_blocks * block_bytes);
    for (size_t i = 0; i < n_blocks; i++)
        std::memcpy(out + i * block_bytes, &half, sizeof half);
}

void fill_f16(uint8_t * out, size_t n, float sigma, Random & random) {
    auto * values = reinterpret_cast<ggml_fp16_t *>(out);
    std::vector<ggml_fp16_t> table(65536);
    for (ggml_fp16_t & value : table)
        value = ggml_fp32_to_fp16(sigma * random.normal());
    for (size_t i = 0; i < n; i += 4) {
        const uint64_t bits = random.next();
        for (size_t k = 0; k < std::min<size_t>(4, n - i); k++)
            values[i + k] = table[(bits >> (16 * k)) & 0xFFFF];
    }
}

// Any other format goes through ggml's own quantizer.
void fill_quantized(ggml_tensor * tensor, float sigma, Random & random) {
    std::vector<float> row(static_cast<size_t>(tensor->ne[0]));
    auto * out = static_cast<uint8_t *>(tensor->data);
    for (int64_t r = 0; r < ggml_nrows(tensor); r++) {
        for (float & value : row)
            value = sigma * random.normal();
        out += ggml_quantize_chunk(tensor->type, row.data(), out, 0, 1, tensor->ne[0], nullptr);
    }
}

void fill_f32(ggml_tensor * tensor, float mean, float sigma, Random & random) {
    auto * values = static_cast<float *>(tensor->data);
    for (int64_t i = 0; i < ggml_nelements(tensor); i++)
        values[i] = mean + sigma * random.normal();
}

void fill_matrix(ggml_tensor * tensor, float sigma, Random & random) {
    auto * out = static_cast<uint8_t *>(tensor->data);
    const size_t n = static_cast<size_t>(ggml_nelements(tensor));
    switch (tensor->type) {
    case GGML_TYPE_F32: fill_f32(tensor, 0.0f, sigma, random); break;
    case GGML_TYPE_F16: fill_f16(out, n, sigma, random); break;
    case GGML_TYPE_Q4_0: fill_blocks(out, n / 32, 18, sigma / 4.61f, random); break; // uniform -8..7
    case GGML_TYPE_Q8_0: fill_blocks(out, n / 32, 34, sigma / 73.9f, random); break; // uniform -128..127
    default: fill_quantized(tensor, sigma, random);
    }
}

class Writer {
public:
    explicit Writer(const ModelSpec & spec)
        : spec_(spec), random_(17), arch_(spec.n_expert ? "qwen3moe" : "llama"), gguf_(gguf_init_empty(), gguf_free) {
        ggml_init_params params = {ggml_tensor_overhead() * (16 + 16 * spec.n_layer), nullptr, true};
        context_ = {ggml_init(params), ggml_free};
        if (!gguf_ || !context_) throw std::runtime_error("no memory for a model's header");
    }

    void write(const std::string & path) {
        keys();
        tensors();
        const std::string partial = path + ".part";
        if (!gguf_write_to_file(gguf_.get(), partial.c_str(), false))
            throw std::runtime_error("cannot write " + partial);
        std::filesystem::rename(partial, path);
    }

private:
    uint32_t head_dim() const { return spec_.n_embd / spec_.n_head; }
    void key(const char * name, uint32_t value) { gguf_set_val_u32(gguf_.get(), (arch_ + "." + name).c_str(), value); }

    void keys() {
        gguf_set_val_str(gguf_.get(), "general.architecture", arch_.c_str());
        gguf_set_val_str(gguf_.get(), "general.name", spec_.name.c_str());
        gguf_set_val_str(gguf_.get(), "tokenizer.ggml.model", "no_vocab"); // token ids only: nothing to tokenize
        key("vocab_size", spec_.n_vocab);
        key("context_length", spec_.n_ctx_train);
        key("embedding_length", spec_.n_embd);
        key("block_count", spec_.n_layer);
        key("feed_forward_length", spec_.n_ff);
        key("attention.head_count", spec_.n_head);
        key("attention.head_count_kv", spec_.n_head_kv);
        key("attention.key_length", head_dim());
        key("attention.value_length", head_dim());
        key("rope.dimension_count", head_dim());
        gguf_set_val_f32(gguf_.get(), (arch_ + ".attention.layer_norm_rms_epsilon").c_str(), 1e-6f);
        gguf_set_val_f32(gguf_.get(), (arch_ + ".rope.freq_base").c_str(), 10000.0f);
        if (spec_.n_expert == 0) return;
        key("expert_count", spec_.n_expert);
        key("expert_used_count", spec_.n_expert_used);
        key("expert_feed_forward_length", spec_.n_ff);
    }

    ggml_tensor * add(const std::string & name, ggml_type type, int64_t a, int64_t b = 1, int64_t c = 1) {
        ggml_tensor * tensor = ggml_new_tensor_3d(context_.get(), type, a, b, c);
        if (!tensor) throw std::runtime_error("no memory for " + name);
        ggml_set_name(tensor, name.c_str());
        data_.emplace_back(ggml_nbytes(tensor) + 64);
        tensor->data = data_.back().data();
        return tensor;
    }
    void norm(const std::string & name, int64_t n) {
        ggml_tensor * tensor = add(name, GGML_TYPE_F32, n);
        fill_f32(tensor, 1.0f, 0.05f, random_);
        gguf_add_tensor(gguf_.get(), tensor);
    }
    // Keeps the variance of its input, times gain.
    void matrix(const std::string & name, ggml_type type, float gain, int64_t in, int64_t out, int64_t n = 1) {
        ggml_tensor * tensor = add(name, type, in, out, n);
        fill_matrix(tensor, gain / std::sqrt(static_cast<float>(in)), random_);
        gguf_add_tensor(gguf_.get(), tensor);
    }

    void tensors() {
        const int64_t embd = spec_.n_embd;
        matrix("token_embd.weight", GGML_TYPE_Q8_0, std::sqrt(static_cast<float>(embd)), embd, spec_.n_vocab);
        norm("output_norm.weight", embd);
        matrix("output.weight", spec_.type == GGML_TYPE_Q4_0 ? GGML_TYPE_Q8_0 : spec_.type, 3.0f, embd, spec_.n_vocab);
        for (uint32_t layer = 0; layer < spec_.n_layer; layer++)
            block("blk." + std::to_string(layer) + ".");
    }

    void block(const std::string & p) {
        const int64_t embd = spec_.n_embd, kv = int64_t(head_dim()) * spec_.n_head_kv;
        norm(p + "attn_norm.weight", embd);
        matrix(p + "attn_q.weight", spec_.type, 1.0f, embd, embd);
        matrix(p + "attn_k.weight", spec_.type, 1.0f, embd, kv);
        matrix(p + "attn_v.weight", spec_.type, 1.0f, embd, kv);
        matrix(p + "attn_output.weight", spec_.type, 0.5f, embd, embd);
        norm(p + "ffn_norm.weight", embd);
        spec_.n_expert ? experts(p) : ffn(p);
    }

    void ffn(const std::string & p) {
        matrix(p + "ffn_gate.weight", spec_.type, 1.0f, spec_.n_embd, spec_.n_ff);
        matrix(p + "ffn_up.weight", spec_.type, 1.0f, spec_.n_embd, spec_.n_ff);
        matrix(p + "ffn_down.weight", spec_.type, 0.5f, spec_.n_ff, spec_.n_embd);
    }

    void experts(const std::string & p) {
        norm(p + "attn_q_norm.weight", head_dim());
        norm(p + "attn_k_norm.weight", head_dim());
        // A large gain keeps the gate decided: near ties would route differently after any change of rounding.
        matrix(p + "ffn_gate_inp.weight", GGML_TYPE_F32, 4.0f, spec_.n_embd, spec_.n_expert);
        matrix(p + "ffn_gate_exps.weight", spec_.type, 1.0f, spec_.n_embd, spec_.n_ff, spec_.n_expert);
        matrix(p + "ffn_up_exps.weight", spec_.type, 1.0f, spec_.n_embd, spec_.n_ff, spec_.n_expert);
        matrix(p + "ffn_down_exps.weight", spec_.type, 0.5f, spec_.n_ff, spec_.n_embd, spec_.n_expert);
    }

    const ModelSpec & spec_;
    Random random_;
    std::string arch_;
    std::unique_ptr<gguf_context, void (*)(gguf_context *)> gguf_;
    std::unique_ptr<ggml_context, void (*)(ggml_context *)> context_{nullptr, ggml_free};
    std::vector<std::vector<uint8_t>> data_;
};

} // namespace

std::string make_model(const ModelSpec & spec, const std::string & folder) {
    std::filesystem::create_directories(folder);
    const std::string path = (std::filesystem::path(folder) / (spec.name + ".gguf")).string();
    if (!std::filesystem::exists(path)) Writer(spec).write(path);
    return path;
}

} // namespace kit
