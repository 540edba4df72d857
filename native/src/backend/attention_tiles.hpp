// Attention whose mask is too large for the device: which queries are computed together, and which
// keys they can see at all. Pure.
//
// A key that is masked for every query of a tile adds exactly nothing to their results, so leaving it
// out changes no bit, as long as the rest keeps its place in the kernel's own tiles of keys.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace xlm {

struct AttentionTile {
    int64_t first_query = 0, n_queries = 0;
    int64_t first_key = 0, n_keys = 0;

    uint64_t mask_bytes() const { return static_cast<uint64_t>(n_queries) * static_cast<uint64_t>(n_keys) * 2; }
};

// Fewer queries may take another path in the kernels, with other last bits; more than one tile of keys too.
constexpr int64_t kTileQueries = 64, kTileKeys = 256;
constexpr uint16_t kMasked = 0xFC00; // minus infinity as F16

// Bytes of mask that a tile may have: `wanted`, but at least what the smallest tile needs.
uint64_t tile_stage_bytes(int64_t n_keys, uint64_t wanted);

// `mask`: F16 bits, or the F32 that they are to be made of; n_queries rows of n_keys. Tiles are as large as
// `stage_bytes` allows, unless two send fewer bytes. None where `stop` said so meanwhile.
std::vector<AttentionTile> attention_tiles(const uint16_t * mask, int64_t n_queries, int64_t n_keys,
                                           uint64_t stage_bytes, const std::function<bool()> & stop = {});
std::vector<AttentionTile> attention_tiles(const float * mask, int64_t n_queries, int64_t n_keys, uint64_t stage_bytes,
                                           const std::function<bool()> & stop = {});

} // namespace xlm
