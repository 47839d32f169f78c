// Products of float rows with panels of any float type.
#pragma once
#include "workspace.h"

namespace LLMC_NS {

// Copies x[rows, K] to blocks [K][rows of the block], so that the inner loop reads one stream.
static inline void pack_floats(const float* x, int64_t rows, int64_t K, float* packed) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t begin = block_start(rows, blocks, i);
        const int64_t count = block_start(rows, blocks, i + 1) - begin;
        const float* from = x + begin * K;
        float* to = packed + begin * K;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < K; k++) to[k * count + r] = from[r * K + k];
    }
}

// c[rows, 32] = packed rows * panel (its groups scaled, if any); each chunk of the panel is unpacked once for all rows.
template <int TYPE>
static inline void multiply_floats(int64_t rows, const float* packed, int64_t K, const char* panel,
                                   const Groups& groups, float* unpacked, float* c) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS), row_bytes = panel_bytes(TYPE, 1);
    for (int64_t k = 0; k < K; k += K_CHUNK) {
        const int64_t count = min64(K_CHUNK, K - k);
        const float* b = unpacked;
        if (TYPE == LLMC_F32) b = reinterpret_cast<const float*>(panel) + k * PANEL;
        else if (groups.values) unpack_grouped<TYPE>(panel, groups, k, count, unpacked);
        else unpack<TYPE>(panel, k, (count + 1) / 2 * 2, unpacked);
        // While this chunk is multiplied the next one is brought closer, a few lines per block.
        const char* next = panel + (k + count) * row_bytes;
        const int64_t lines = ceil_div(K_CHUNK * row_bytes / 64, blocks * VECTORS / 2);
        for (int v = 0; v < VECTORS; v += 2) {
            for (int64_t i = 0; i < blocks; i++) {
                const int64_t begin = block_start(rows, blocks, i);
                const int64_t tile = block_start(rows, blocks, i + 1) - begin;
                for (int64_t line = 0; line < lines; line++, next += 64)
                    __builtin_prefetch(next, 0, 2);
                multiply_rows(tile, packed + begin * K + k * tile, 1, tile, b + v * W, count,
                              c + begin * PANEL + v * W, k == 0);
            }
        }
    }
}

}  // namespace LLMC_NS
