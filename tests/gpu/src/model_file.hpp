// Writes random-weight GGUF models with a real architecture, so that the kit needs no download.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <string>

namespace kit {

// Dense models are of llama.cpp's architecture "llama", those with experts of "qwen3moe".
struct ModelSpec {
    std::string name;
    ggml_type type = GGML_TYPE_Q4_0; // of the matrices; embeddings are Q8_0, norms F32
    uint32_t n_embd = 512;           // a multiple of 256
    uint32_t n_head = 8;
    uint32_t n_head_kv = 4;
    uint32_t n_ff = 1024; // a multiple of 256; of one expert when there are experts
    uint32_t n_layer = 4;
    uint32_t n_vocab = 2048;
    uint32_t n_expert = 0;
    uint32_t n_expert_used = 0;
    uint32_t n_ctx_train = 4096;
};

// Writes the model unless FOLDER/NAME.gguf exists; returns its path. Same spec, same bytes.
// Throws std::runtime_error when the file cannot be written.
std::string make_model(const ModelSpec & spec, const std::string & folder);

} // namespace kit
