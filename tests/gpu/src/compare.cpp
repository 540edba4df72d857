#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace kit {

namespace {

struct Best {
    size_t index = 0;
    float lead = 0.0f; // over the second
};

Best best_of(const float * row, uint32_t n) {
    const auto * top = std::max_element(row, row + n);
    float second = -INFINITY;
    for (const float * p = row; p != row + n; p++)
        if (p != top) second = std::max(second, *p);
    return {static_cast<size_t>(top - row), *top - second};
}

void compare_row(const float * test, const float * reference, uint32_t n, Difference & result) {
    double error = 0.0, power = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        result.finite = result.finite && std::isfinite(test[i]) && std::isfinite(reference[i]);
        error += std::pow(double(test[i]) - reference[i], 2);
        power += std::pow(double(reference[i]), 2);
    }
    const double nmse = power > 0 ? error / power : error;
    result.worst_nmse = std::max(result.worst_nmse, nmse);
    result.share_in_bound += nmse <= kGraphBound ? 1.0 : 0.0;
    const Best expected = best_of(reference, n);
    const bool same = best_of(test, n).index == expected.index;
    const bool decided = expected.lead > 6.0 * std::sqrt(kGraphBound * power / n);
    result.top1_different += !same;
    result.decided += decided;
    result.decided_different += decided && !same;
}

} // namespace

Difference compare(const std::vector<float> & test, const std::vector<float> & reference, uint32_t n_vocab) {
    if (test.size() != reference.size() || test.empty() || n_vocab == 0)
        throw std::runtime_error("logits of different size cannot be compared");
    Difference result;
    result.rows = test.size() / n_vocab;
    result.bits_equal = std::memcmp(test.data(), reference.data(), test.size() * sizeof(float)) == 0;
    for (size_t row = 0; row < result.rows; row++)
        compare_row(test.data() + row * n_vocab, reference.data() + row * n_vocab, n_vocab, result);
    result.share_in_bound /= static_cast<double>(result.rows);
    return result;
}

Json to_json(const Difference & d) {
    return {{"bits_equal", d.bits_equal},
            {"rows", d.rows},
            {"worst_nmse", d.worst_nmse},
            {"share_of_rows_in_bound", d.share_in_bound},
            {"top1_different", d.top1_different},
            {"decided_rows", d.decided},
            {"decided_rows_different", d.decided_different},
            {"finite", d.finite}};
}

} // namespace kit
