// One MUL_MAT_ID on some of its (token, choice) pairs: their rows are gathered, multiplied with the experts at
// hand, and scattered into the place of the whole result. Pairs that are not named stay as they are: masks or
// ids out of range would be unsafe on every backend.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <cstdint>

namespace xlm {

struct PassPlaces {
    ggml_backend_buffer_t buffer = nullptr; // nullptr: host memory of the CPU
    void * rows = nullptr;                  // gathered input, n_pairs rows
    void * results = nullptr;
    const int32_t * sources = nullptr; // row of the input, by pair
    const int32_t * experts = nullptr; // index into the matrix at hand
    const int32_t * targets = nullptr; // row of the result
    int64_t n_pairs = 0;
};

constexpr size_t kPassTensors = 10; // made for one pass

// Appends the pass to `graph`. `matmul` gives input, result and precision; `matrix` holds the experts.
void append_pass(ggml_context * context, ggml_cgraph * graph, const ggml_tensor & matmul, ggml_tensor & matrix,
                 const PassPlaces & places);

} // namespace xlm
