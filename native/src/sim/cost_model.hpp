// Modelled mode: how long the device takes for an op.
#pragma once

#include "clock.hpp"

#include "xlm/xlm_sim.h"

#include "ggml-impl.h"

namespace xlm::sim {

struct OpCost {
    double flops = 0;
    double bytes = 0; // device memory traffic, reads and writes, each tensor once
};

OpCost op_cost(const ggml_tensor & op);

// Roofline (Williams, Waterman, Patterson 2009): max(flops / peak, bytes / bandwidth) + launch.
// 0 for ops that only rename memory.
double op_ns(const xlm_sim_config & config, const ggml_tensor & op);

// One submission: the launch and all its ops, one after the other.
ns_t graph_ns(const xlm_sim_config & config, const ggml_cgraph & graph);

// Reading and writing `bytes` of device memory once.
ns_t device_copy_ns(const xlm_sim_config & config, uint64_t bytes);

// Ops that do work: without views, reshapes and the like.
uint64_t count_ops(const ggml_cgraph & graph);

} // namespace xlm::sim
