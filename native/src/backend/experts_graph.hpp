// Finds the experts of a graph: runs of MUL_MAT_ID over the same ids whose matrices can be handled one expert
// at a time. Pure.
#pragma once

#include "analyse.hpp"

namespace xlm {

// Groups in order of the graph. An experts unit without one is of a form not known: its tensors are handled
// as a whole. Keeps what the groups read on the device until their last node (Root::keep_until).
std::vector<ExpertGroup> find_expert_groups(const ggml_cgraph & graph, GraphInfo & info);

ExpertScratch expert_scratch(const ExpertGroup & group);

} // namespace xlm
