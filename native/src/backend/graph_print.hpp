// What a graph looked like when it was read, to know one built anew in the same place: libmtmd builds its graph for
// every image, llama.cpp for every change of a step's length. All that reading a graph looks at is compared. Pure.
#pragma once

#include "ggml-impl.h"

#include <array>
#include <cstdint>
#include <vector>

namespace xlm {

class GraphPrint {
public:
    explicit GraphPrint(const ggml_cgraph & graph);
    // The same tensors at the same addresses, with the same contents and as many users.
    bool matches(const ggml_cgraph & graph) const;

private:
    struct Seen {
        explicit Seen(const ggml_tensor & tensor);
        bool operator==(const Seen & other) const;

        ggml_type type;
        ggml_op op;
        int32_t flags;
        std::array<int64_t, GGML_MAX_DIMS> ne;
        std::array<size_t, GGML_MAX_DIMS> nb;
        const ggml_tensor * view_src;
        size_t view_offs;
        const void * data;
        const ggml_backend_buffer * buffer;
    };
    struct SeenNode {
        SeenNode(const ggml_cgraph & graph, int i);
        bool operator==(const SeenNode & other) const;

        const ggml_tensor * tensor;
        int n_users;
        Seen seen;
        std::array<int32_t, GGML_MAX_OP_PARAMS / sizeof(int32_t)> params;
        std::array<const ggml_tensor *, GGML_MAX_SRC> sources;
    };

    std::vector<SeenNode> nodes_;
    std::vector<Seen> sources_; // of all nodes, in their order
};

} // namespace xlm
