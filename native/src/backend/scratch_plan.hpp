// Places activations in one device buffer by their lifetimes. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace xlm {

struct ScratchItem {
    uint64_t bytes = 0;
    int first = -1; // first node that touches it, -1: needs no place
    int last = -1;  // last node that touches it, inclusive
};

struct ScratchLayout {
    std::vector<uint64_t> offsets; // by item; meaningless where the item needs no place
    uint64_t peak_bytes = 0;
};

// The smaller of two layouts: in order of birth, and largest items first. Two items share bytes only when their
// lifetimes do not meet.
ScratchLayout plan_scratch(const std::vector<ScratchItem> & items, uint64_t alignment);

} // namespace xlm
