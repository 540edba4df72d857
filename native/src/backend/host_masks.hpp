// Masks of attention that never lie on the device as a whole, packed as the tiles that attention takes. A cast of one
// is not computed where only attention in tiles reads it: its tiles are made of what it is a cast of, and the whole
// mask only if the CPU reads it after all.
#pragma once

#include "attention_tiles.hpp"

#include "ggml.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace xlm {

class HostMasks {
public:
    struct Tile {
        AttentionTile at;
        const uint16_t * values; // F16, row by row
    };

    // Of one mask; lives until the next graph, so that copies to the device may read it.
    struct Tiles {
        std::vector<Tile> tiles;
        std::vector<uint16_t> values;
    };

    void begin_graph() { masks_.clear(); }

    // In place of casting: notes what `cast` is a cast of, whose memory may be used for other things afterwards.
    // False: `stop` said so, and nothing is noted.
    bool cast(const ggml_tensor & cast, uint64_t stage_bytes, const std::function<bool()> & stop);
    const Tiles & of(const ggml_tensor & mask, uint64_t stage_bytes);
    // The host is about to read it: writes what was only noted.
    void write_whole(const ggml_tensor & mask);

private:
    struct Mask {
        std::shared_ptr<const Tiles> tiles;
        bool noted; // but not written
    };

    std::unordered_map<const ggml_tensor *, Mask> masks_;
};

} // namespace xlm
