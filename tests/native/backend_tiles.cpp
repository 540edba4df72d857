// Attention in tiles: every query once, every key that it can see inside its tile, no tile above the stage.
#include "backend_check.hpp"

#include "backend/attention_tiles.hpp"
#include "backend/host_masks.hpp"
#include "backend/patch_runs.hpp"

#include "ggml-cpu.h"

#include <cmath>
#include <random>

using namespace xlm;

namespace {

constexpr uint16_t kHidden = 0xFC00;

void check_cover(const std::vector<uint16_t> & mask, int64_t n_queries, int64_t n_keys, uint64_t stage_bytes) {
    int64_t next = 0;
    for (const AttentionTile & tile : attention_tiles(mask.data(), n_queries, n_keys, stage_bytes)) {
        CHECK_EQ(tile.first_query, next);
        CHECK(tile.n_queries >= std::min(kTileQueries, n_queries));
        CHECK(tile.first_key % kTileKeys == 0 && tile.n_keys > 0);
        const int64_t end_key = tile.first_key + tile.n_keys;
        CHECK(end_key == n_keys || (end_key < n_keys && end_key % kTileKeys == 0));
        CHECK(tile.mask_bytes() <= tile_stage_bytes(n_keys, stage_bytes));
        next += tile.n_queries;
        for (int64_t q = tile.first_query; q < next; q++)
            for (int64_t k = 0; k < n_keys; k++)
                CHECK(mask[static_cast<size_t>(q * n_keys + k)] == kHidden || (k >= tile.first_key && k < end_key));
    }
    CHECK_EQ(next, n_queries);
}

// Windows along the diagonal, as Qwen2.5-VL's towers have them: tiles see a band, not everything.
void test_windows() {
    const int64_t n = 2048, window = 64;
    std::vector<uint16_t> mask(static_cast<size_t>(n * n), kHidden);
    for (int64_t q = 0; q < n; q++)
        for (int64_t k = q / window * window; k < (q / window + 1) * window; k++)
            mask[static_cast<size_t>(q * n + k)] = 0;
    check_cover(mask, n, n, 1 << 20);
    uint64_t bytes = 0;
    for (const AttentionTile & tile : attention_tiles(mask.data(), n, n, 256 << 10))
        bytes += tile.mask_bytes();
    CHECK(bytes < static_cast<uint64_t>(n * n) / 2); // of 2 n^2 bytes
}

void test_everything_visible() {
    const std::vector<uint16_t> mask(500 * 700, 0);
    check_cover(mask, 500, 700, 1);
    check_cover(mask, 500, 700, UINT64_MAX);
    CHECK_EQ(attention_tiles(mask.data(), 500, 700, UINT64_MAX).size(), size_t{1});
}

void test_nothing_visible() {
    const std::vector<uint16_t> mask(130 * 300, kHidden);
    check_cover(mask, 130, 300, 4096);
    CHECK(attention_tiles(mask.data(), 0, 300, 4096).empty());
}

void test_random() {
    std::mt19937 random(7);
    for (int round = 0; round < 60; round++) {
        const int64_t n_queries = 1 + static_cast<int64_t>(random() % 400),
                      n_keys = 1 + static_cast<int64_t>(random() % 900);
        std::vector<uint16_t> mask(static_cast<size_t>(n_queries * n_keys), kHidden);
        for (size_t i = 0; i < mask.size() / 50; i++)
            mask[random() % mask.size()] = static_cast<uint16_t>(random() % 0x7C00);
        check_cover(mask, n_queries, n_keys, 1 + random() % (1 << 18));
    }
}

ggml_tensor tensor_of(ggml_type type, int64_t n_queries, int64_t n_keys, void * data) {
    ggml_tensor tensor{};
    tensor.type = type;
    tensor.ne[0] = n_keys, tensor.ne[1] = n_queries, tensor.ne[2] = tensor.ne[3] = 1;
    tensor.nb[0] = ggml_type_size(type);
    for (int d = 1; d < GGML_MAX_DIMS; d++)
        tensor.nb[d] = tensor.nb[d - 1] * static_cast<size_t>(tensor.ne[d - 1]);
    tensor.data = data;
    return tensor;
}

// A cast that is only noted gives the tiles of the cast, and the whole if it is asked for.
void test_noted_casts() {
    std::mt19937 random(8);
    for (int round = 0; round < 40; round++) {
        const int64_t n_queries = 1 + static_cast<int64_t>(random() % 300),
                      n_keys = 1 + static_cast<int64_t>(random() % 900);
        const auto count = static_cast<size_t>(n_queries * n_keys);
        std::vector<float> mask(count, -INFINITY);
        for (size_t i = 0; i < count / 80; i++)
            mask[random() % count] = i % 5 ? static_cast<float>(random() % 900) / -7.0F : -1e9F; // infinite as F16
        std::vector<uint16_t> expected(count), found(count, 1), again(count, 2);
        ggml_cpu_fp32_to_fp16(mask.data(), expected.data(), n_queries * n_keys);
        ggml_tensor from = tensor_of(GGML_TYPE_F32, n_queries, n_keys, mask.data());
        ggml_tensor cast = tensor_of(GGML_TYPE_F16, n_queries, n_keys, found.data());
        ggml_tensor copy = tensor_of(GGML_TYPE_F16, n_queries, n_keys, again.data());
        cast.src[0] = &from, copy.src[0] = &cast;
        HostMasks masks;
        CHECK(!masks.cast(cast, 1 << 20, [] { return true; }));
        CHECK(masks.cast(cast, 1 << 20, {}));
        std::fill(mask.begin(), mask.end(), 1.0F); // its memory is used for other things
        CHECK(masks.cast(copy, 1 << 20, {}));
        for (const auto & [tile, values] : masks.of(copy, 1 << 20).tiles)
            for (int64_t q = 0; q < tile.n_queries; q++)
                for (int64_t k = 0; k < tile.n_keys; k++)
                    CHECK_EQ(values[q * tile.n_keys + k],
                             expected[static_cast<size_t>((tile.first_query + q) * n_keys + tile.first_key + k)]);
        CHECK_EQ(found[0], uint16_t{1});
        masks.write_whole(cast);
        CHECK(found == expected);
        masks.write_whole(copy);
        CHECK(again == expected);
        again[0] = 3;
        masks.write_whole(copy); // once
        CHECK_EQ(again[0], uint16_t{3});
    }
}

// Tiles of patches: none so small that a kernel would take another path.
void test_tiles_of_patches() {
    for (int64_t n = kLeastUnits; n < 20000; n += 7) {
        for (const int64_t patches : kTilePatches) {
            PatchRun run;
            run.n_units = n;
            const PatchTiles tiles(run, patches);
            const int64_t rest = n - (tiles.n_tiles - 1) * tiles.units;
            CHECK(rest > 0 && rest <= tiles.units);
            CHECK(tiles.n_tiles == 1 || (rest >= kLeastTile && tiles.units % kTileStep == 0));
            CHECK(tiles.units <= patches + 8 * kTileStep);
        }
    }
}

// The patch embedding: rows of patches go by fours in a tile where they do in the whole, and nowhere else.
void test_tiles_of_an_embedding() {
    for (int64_t across = 1; across < 120; across++) {
        for (int64_t down = 1; down < 120; down++) {
            PatchRun run;
            run.embeds = true;
            run.n_units = down;
            run.patches_per_unit = across;
            const PatchTiles tiles(run, kTilePatches.front());
            const int64_t rest = down - (tiles.n_tiles - 1) * tiles.units;
            const bool by_fours = across * down % 4 == 0;
            CHECK(rest > 0 && rest <= tiles.units);
            CHECK_EQ(across * tiles.units % 4 == 0, by_fours);
            CHECK_EQ(across * rest % 4 == 0, by_fours);
        }
    }
}

} // namespace

int main() {
    test_windows();
    test_everything_visible();
    test_nothing_visible();
    test_random();
    test_noted_casts();
    test_tiles_of_patches();
    test_tiles_of_an_embedding();
    return 0;
}
