// What a step's first nodes on the device find on the host, as far as it is small (positions, indices of rows, a mask,
// one token's embedding), side by side in the scratch, so that one copy brings all of it. Pure.
#pragma once

#include "analyse.hpp"

namespace xlm {

struct InputPack {
    struct Member {
        int root = -1;
        uint64_t offset = 0; // in the pack
    };
    std::vector<Member> members; // none, or at least two
    int carrier = -1;            // the root in whose item the pack lies
    uint64_t bytes = 0;

    bool holds(int root) const;
};

// The carrier's item becomes that of the pack, for as long as one of its members needs a place; the others' go.
// `on_device[i]`: node i runs there.
InputPack pack_inputs(const GraphInfo & info, const std::vector<uint8_t> & on_device, std::vector<ScratchItem> & items);

} // namespace xlm
