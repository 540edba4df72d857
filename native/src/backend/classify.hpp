// What a weight is for, told by its name. Pure: knows llama.cpp's naming, no ggml.
#pragma once

#include "xlm/xlm_device.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace xlm {

struct TensorClass {
    std::string tower;  // what stands before "blk.N." ("v.", "enc."), empty for the language model
    int32_t layer = -1; // N, or -1 outside of layers
    xlm_sublayer_kind kind = XLM_KIND_OUTPUT;
};

// Class of a weight of any llama.cpp architecture. Never fails: unknown names
// inside a layer count as FFN, outside as OUTPUT.
TensorClass classify_weight(std::string_view name);

// True for the token embedding of the language model, which doubles as the
// output matrix in models that have no matrix of that name.
bool is_token_embedding(std::string_view name);
bool is_output_matrix(std::string_view name);

// Layer of a KV or recurrent-state tensor ("cache_k_l7" is 7), -1 when the name tells none.
int32_t state_layer(std::string_view name);

} // namespace xlm
