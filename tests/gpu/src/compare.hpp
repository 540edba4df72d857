// Comparing logits, and the bounds that decide.
#pragma once

#include "report.hpp"

#include <cstdint>
#include <vector>

namespace kit {

// ggml's own bounds of the normalized mean squared error against the CPU (test-backend-ops):
// 5e-4 for one MUL_MAT, MUL_MAT_ID or FLASH_ATTN_EXT, 2e-3 for a whole llama graph. Logits are the latter.
constexpr double kOpBound = 5e-4;
constexpr double kGraphBound = 2e-3;

struct Difference {
    bool bits_equal = false;
    size_t rows = 0;
    double worst_nmse = 0.0;     // over rows
    double share_in_bound = 0.0; // of rows with NMSE <= kGraphBound
    size_t top1_different = 0;
    size_t decided = 0;           // rows whose best token leads by more than six times the allowed error
    size_t decided_different = 0; // of them, rows with another best token
    bool finite = true;
};

// `test` and `reference` hold the same number of rows of n_vocab logits, else std::runtime_error.
Difference compare(const std::vector<float> & test, const std::vector<float> & reference, uint32_t n_vocab);
Json to_json(const Difference & difference);

} // namespace kit
