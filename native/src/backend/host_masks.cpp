#include "host_masks.hpp"

#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>

namespace xlm {

namespace {

size_t values_of(const AttentionTile & tile) {
    return static_cast<size_t>(tile.n_queries * tile.n_keys);
}

void take_row(const ggml_tensor & from, int64_t first, uint16_t * to, int64_t n) {
    if (from.type == GGML_TYPE_F16)
        std::memcpy(to, static_cast<const uint16_t *>(from.data) + first, static_cast<size_t>(n) * sizeof(uint16_t));
    else
        ggml_cpu_fp32_to_fp16(static_cast<const float *>(from.data) + first, to, n);
}

std::vector<AttentionTile> find_tiles(const ggml_tensor & mask, uint64_t bytes, const std::function<bool()> & stop) {
    if (mask.type == GGML_TYPE_F16)
        return attention_tiles(static_cast<const uint16_t *>(mask.data), mask.ne[1], mask.ne[0], bytes, stop);
    return attention_tiles(static_cast<const float *>(mask.data), mask.ne[1], mask.ne[0], bytes, stop);
}

// Of a mask on the host, F16 or F32. nullptr: stopped.
std::shared_ptr<const HostMasks::Tiles> pack(const ggml_tensor & mask, uint64_t stage_bytes,
                                             const std::function<bool()> & stop) {
    const auto packed = std::make_shared<HostMasks::Tiles>();
    const std::vector<AttentionTile> tiles = find_tiles(mask, stage_bytes, stop);
    if (tiles.empty() && mask.ne[1] > 0) return nullptr;
    size_t count = 0;
    for (const AttentionTile & tile : tiles)
        count += values_of(tile);
    packed->values.resize(count);
    uint16_t * to = packed->values.data();
    for (const AttentionTile & tile : tiles) {
        packed->tiles.push_back({tile, to});
        for (int64_t q = tile.first_query; q < tile.first_query + tile.n_queries; q++, to += tile.n_keys)
            take_row(mask, q * mask.ne[0] + tile.first_key, to, tile.n_keys);
    }
    return packed;
}

} // namespace

bool HostMasks::cast(const ggml_tensor & cast, uint64_t stage_bytes, const std::function<bool()> & stop) {
    if (masks_.count(&cast)) return true;
    const auto known = masks_.find(cast.src[0]);
    auto tiles = known != masks_.end() ? known->second.tiles : pack(*cast.src[0], stage_bytes, stop);
    if (!tiles) return false;
    masks_.insert({&cast, Mask{std::move(tiles), true}});
    return true;
}

const HostMasks::Tiles & HostMasks::of(const ggml_tensor & mask, uint64_t stage_bytes) {
    const auto known = masks_.find(&mask);
    if (known != masks_.end()) return *known->second.tiles;
    return *masks_.insert({&mask, Mask{pack(mask, stage_bytes, {}), false}}).first->second.tiles;
}

// What is in no tile is masked.
void HostMasks::write_whole(const ggml_tensor & mask) {
    const auto known = masks_.find(&mask);
    if (known == masks_.end() || !known->second.noted) return;
    known->second.noted = false;
    auto * data = static_cast<uint16_t *>(mask.data);
    std::fill_n(data, ggml_nelements(&mask), kMasked);
    for (const Tile & tile : known->second.tiles->tiles)
        for (int64_t q = 0; q < tile.at.n_queries; q++)
            std::memcpy(data + (tile.at.first_query + q) * mask.ne[0] + tile.at.first_key,
                        tile.values + q * tile.at.n_keys, static_cast<size_t>(tile.at.n_keys) * sizeof(uint16_t));
}

} // namespace xlm
