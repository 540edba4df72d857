#include "attention_tiles.hpp"

#include <algorithm>

namespace xlm {

namespace {

constexpr float kInfiniteAsF16 = -65520.0F; // and what is below it; libmtmd writes the lowest float
// What a tile costs besides its mask, as bytes of mask: a copy and a launch.
constexpr uint64_t kTileCostBytes = 96 << 10;

struct KeyRange {
    int64_t first = INT64_MAX, end = 0; // empty

    void extend(const KeyRange & other) {
        first = std::min(first, other.first);
        end = std::max(end, other.end);
    }
};

// A mask is mostly this, and has as many keys as patches squared: a block at a time is what compilers make wide.
constexpr int64_t kBlockKeys = 64;

bool visible(uint16_t key) {
    return key != kMasked;
}

bool visible(float key) {
    return !(key <= kInfiniteAsF16);
}

template <typename Key>
bool all_masked(const Key * keys) {
    int any = 0;
    for (int64_t i = 0; i < kBlockKeys; i++)
        any |= visible(keys[i]);
    return any == 0;
}

template <typename Key>
KeyRange visible_keys(const Key * row, int64_t n_keys) {
    int64_t first = 0, end = n_keys;
    while (first + kBlockKeys <= n_keys && all_masked(row + first))
        first += kBlockKeys;
    while (first < n_keys && !visible(row[first]))
        first++;
    while (end - kBlockKeys >= first && all_masked(row + end - kBlockKeys))
        end -= kBlockKeys;
    while (end > first && !visible(row[end - 1]))
        end--;
    return first == end ? KeyRange{} : KeyRange{first, end};
}

// To the borders of the kernel's own tiles; a query that sees nothing still gets one.
KeyRange aligned(const KeyRange & range, int64_t n_keys) {
    if (range.end == 0) return {0, std::min(kTileKeys, n_keys)};
    const int64_t end = (range.end + kTileKeys - 1) / kTileKeys * kTileKeys;
    return {range.first / kTileKeys * kTileKeys, std::min(end, n_keys)};
}

AttentionTile make_tile(int64_t first_query, int64_t end_query, const KeyRange & keys, int64_t n_keys) {
    const KeyRange range = aligned(keys, n_keys);
    return {first_query, end_query - first_query, range.first, range.end - range.first};
}

template <typename Key>
std::vector<AttentionTile> tiles_of(const Key * mask, int64_t n_queries, int64_t n_keys, uint64_t stage_bytes,
                                    const std::function<bool()> & stop) {
    std::vector<AttentionTile> tiles;
    KeyRange open;
    int64_t first = 0;
    for (int64_t query = 0; query < n_queries;) {
        if (stop && stop()) return {};
        // The last step takes what would be too small for one of its own.
        const int64_t end = n_queries - query < 2 * kTileQueries ? n_queries : query + kTileQueries;
        KeyRange step;
        for (int64_t q = query; q < end; q++)
            step.extend(visible_keys(mask + q * n_keys, n_keys));
        KeyRange both = open;
        both.extend(step);
        const uint64_t bytes = make_tile(first, end, both, n_keys).mask_bytes();
        const uint64_t apart = make_tile(first, query, open, n_keys).mask_bytes() +
                               make_tile(query, end, step, n_keys).mask_bytes() + kTileCostBytes;
        if (query > first && (bytes > stage_bytes || bytes > apart)) {
            tiles.push_back(make_tile(first, query, open, n_keys));
            first = query;
            both = step;
        }
        open = both;
        query = end;
    }
    if (n_queries > 0) tiles.push_back(make_tile(first, n_queries, open, n_keys));
    return tiles;
}

} // namespace

uint64_t tile_stage_bytes(int64_t n_keys, uint64_t wanted) {
    return std::max<uint64_t>(wanted, static_cast<uint64_t>(2 * kTileQueries * n_keys) * 2);
}

std::vector<AttentionTile> attention_tiles(const uint16_t * mask, int64_t n_queries, int64_t n_keys,
                                           uint64_t stage_bytes, const std::function<bool()> & stop) {
    return tiles_of(mask, n_queries, n_keys, stage_bytes, stop);
}

std::vector<AttentionTile> attention_tiles(const float * mask, int64_t n_queries, int64_t n_keys, uint64_t stage_bytes,
                                           const std::function<bool()> & stop) {
    return tiles_of(mask, n_queries, n_keys, stage_bytes, stop);
}

} // namespace xlm
