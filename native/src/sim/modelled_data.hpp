// Modelled mode computes nothing, yet data that steers the program must make sense.
#pragma once

#include "ggml-impl.h"

#include <cstddef>

namespace xlm::sim {

constexpr size_t real_copy_bytes = 16 * 1024;

// True for data that is really stored: integers (indices, positions, expert ids)
// of any size, everything else up to real_copy_bytes.
bool data_is_real(const ggml_tensor & tensor, size_t bytes);

// What the host reads: what was stored, or a fixed pattern of harmless numbers
// (finite, not denormal) where nothing was.
void read_modelled(const ggml_tensor & tensor, void * data, size_t offset, size_t bytes);

// Ops whose integer results choose what runs next (expert ids) get valid results:
// each row of ARGSORT and TOP_K holds distinct indices in range, ARGMAX one in
// range. They depend only on the op's name, the row and `step`.
void synthesise_ids(const ggml_cgraph & graph, uint64_t step);

} // namespace xlm::sim
