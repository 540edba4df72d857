#include "modelled_data.hpp"

#include "buffer.hpp"

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace xlm::sim {

namespace {

bool is_integer(ggml_type type) {
    return type == GGML_TYPE_I8 || type == GGML_TYPE_I16 || type == GGML_TYPE_I32 || type == GGML_TYPE_I64;
}

// Between -0.125 and 0.125, different from neighbour to neighbour, the same on every read.
float pattern(size_t i) {
    const auto hash = static_cast<uint32_t>(i) * 2654435761u; // Knuth's multiplicative hash
    return (static_cast<float>(hash >> 24) - 127.5f) / 1024.0f;
}

void fill_pattern(void * data, ggml_type type, size_t offset, size_t bytes) {
    if (type != GGML_TYPE_F32) {
        std::memset(data, 0, bytes);
        return;
    }
    auto * out = static_cast<float *>(data);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        out[i] = pattern(offset / sizeof(float) + i);
}

// Device memory is reused without being written, so bits of another type may be
// read as floats: NaN would spread, denormals would slow the CPU down.
void make_harmless(void * data, size_t bytes) {
    auto * out = static_cast<float *>(data);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        if (out[i] != 0.0f && !(std::isnormal(out[i]) && std::fabs(out[i]) < 1e6f)) out[i] = pattern(i);
    }
}

uint64_t seed_of(const ggml_tensor & op, uint64_t step) {
    uint64_t seed = 1469598103934665603ull ^ step; // FNV-1a over the name
    for (const char * c = op.name; *c; c++)
        seed = (seed ^ static_cast<uint8_t>(*c)) * 1099511628211ull;
    return seed;
}

// The first n of a shuffle of 0 .. n_choices-1 (Fisher-Yates).
void write_distinct(int32_t * out, int64_t n, std::vector<int32_t> & choices, std::mt19937_64 & random) {
    std::iota(choices.begin(), choices.end(), 0);
    for (int64_t i = 0; i < n; i++) {
        const auto left = choices.size() - static_cast<size_t>(i);
        std::swap(choices[static_cast<size_t>(i)], choices[static_cast<size_t>(i) + random() % left]);
        out[i] = choices[static_cast<size_t>(i)];
    }
}

void synthesise_rows(const ggml_tensor & op, uint64_t step) {
    std::mt19937_64 random(seed_of(op, step));
    std::vector<int32_t> choices(static_cast<size_t>(op.src[0]->ne[0]));
    // ARGMAX gives one index a row of its source, laid out along ne[0].
    const int64_t per_row = op.op == GGML_OP_ARGMAX ? 1 : op.ne[0];
    auto * out = static_cast<int32_t *>(op.data);
    for (int64_t i = 0; i + per_row <= ggml_nelements(&op); i += per_row) {
        write_distinct(out + i, per_row, choices, random);
    }
}

bool chooses(const ggml_tensor & op) {
    return (op.op == GGML_OP_ARGSORT || op.op == GGML_OP_TOP_K || op.op == GGML_OP_ARGMAX) &&
           op.type == GGML_TYPE_I32 && ggml_is_contiguous(&op) &&
           op.src[0]->ne[0] >= op.ne[0] * (op.op != GGML_OP_ARGMAX);
}

} // namespace

bool data_is_real(const ggml_tensor & tensor, size_t bytes) {
    return is_integer(tensor.type) || bytes <= real_copy_bytes;
}

void read_modelled(const ggml_tensor & tensor, void * data, size_t offset, size_t bytes) {
    if (!data_is_real(tensor, bytes)) {
        fill_pattern(data, tensor.type, offset, bytes);
        return;
    }
    std::memcpy(data, static_cast<const char *>(tensor.data) + offset, bytes);
    if (tensor.type == GGML_TYPE_F32) make_harmless(data, bytes);
}

void synthesise_ids(const ggml_cgraph & graph, uint64_t step) {
    for (int i = 0; i < graph.n_nodes; i++) {
        const ggml_tensor & op = *graph.nodes[i];
        if (chooses(op) && device_buffer_of(op)) synthesise_rows(op, step);
    }
}

} // namespace xlm::sim
