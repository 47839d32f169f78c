// Products of bf16 rows with bf16, int8 or e4m3 panels on AMX tiles.
//
// Rows are rounded to bf16, int8 and e4m3 weights become bf16 exactly. A panel's order is that of B-tiles, so
// bf16 weights load as they lie. Every row of a tile is summed by itself, in order of k.
#pragma once
#include "workspace.h"
#include "tiles.h"

namespace LLMC_NS {

#if LLMC_AMX

constexpr int64_t TILE_SIZE = 16 * 32;  // bf16 of an A-tile (16 rows, 32 k) or a B-tile (half a panel)
constexpr int64_t TILE_CHUNK = 512;     // rows of an int8 panel expanded at once: 32 KB

// x[rows, K] to A-tiles [rows / 16][K / 32][16][32], padded with zeros.
static inline void pack_tiles(const float* x, int64_t rows, int64_t K, uint16_t* packed) {
    const int64_t depth = pad32(K) / 32;
    for (int64_t row = 0; row < (rows + 15) / 16 * 16; row++) {
        uint16_t* to = packed + row / 16 * depth * TILE_SIZE + row % 16 * 32;
        for (int64_t block = 0; block < depth; block++, to += TILE_SIZE) {
            const int64_t count = row < rows ? min64(32, K - block * 32) : 0;
            const float* from = x + row * K + block * 32;
            for (int64_t k = 0; k < count; k++) to[k] = f32_to_bf16(from[k]);
            for (int64_t k = count; k < 32; k++) to[k] = 0;
        }
    }
}

// int8 or e4m3 pairs to bf16 pairs of the same order: they have few enough bits to be exact.
template <int TYPE>
static inline void expand_panel(const void* panel, int64_t first_pair, int64_t pairs,
                                uint16_t* out) {
    for (int64_t pair = 0; pair < pairs; pair++)
        for (int v = 0; v < VECTORS; v++) {
            vf even, odd;
            load_pair<TYPE>(panel, first_pair + pair, v, even, odd);
            const vu bits = ((vu)even >> 16) | ((vu)odd & 0xffff0000u);
            memcpy(out + paired_vector(pair, v), &bits, sizeof bits);
        }
}

// c[rows padded to 16, 32] = packed rows * panel.
template <int TYPE>
static inline void multiply_tiles(int64_t rows, const uint16_t* packed, int64_t K,
                                  const void* panel, float* expanded, float* c) {
    const int64_t depth = pad32(K) / 32, row_tiles = (rows + 15) / 16;
    for (int64_t start = 0; start < depth; start += TILE_CHUNK / 32) {
        const int64_t blocks = min64(TILE_CHUNK / 32, depth - start);
        const uint16_t* b = static_cast<const uint16_t*>(panel) + start * 2 * TILE_SIZE;
        if (TYPE != LLMC_BF16) {
            uint16_t* out = reinterpret_cast<uint16_t*>(expanded);
            expand_panel<TYPE>(panel, start * 16, blocks * 16, out);
            b = out;
        }
        for (int64_t tile = 0; tile < row_tiles; tile += 2) {
            const bool both = tile + 1 < row_tiles;
            float* sums = c + tile * 16 * PANEL;
            const uint16_t* a = packed + (tile * depth + start) * TILE_SIZE;
            const uint16_t* next = a + (both ? depth * TILE_SIZE : 0);
            if (start == 0) {
                TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
            } else {
                TILE_LOAD(0, sums, 128); TILE_LOAD(1, sums + 16, 128);
                if (both) { TILE_LOAD(2, sums + 512, 128); TILE_LOAD(3, sums + 528, 128); }
            }
            for (int64_t block = 0; block < blocks; block++) {
                const uint16_t* weights = b + block * 2 * TILE_SIZE;
                TILE_LOAD(6, weights, 64);
                TILE_LOAD(7, weights + TILE_SIZE, 64);
                TILE_LOAD(4, a + block * TILE_SIZE, 64);
                TILE_MULTIPLY(0, 4, 6);
                TILE_MULTIPLY(1, 4, 7);
                if (both) {
                    TILE_LOAD(5, next + block * TILE_SIZE, 64);
                    TILE_MULTIPLY(2, 5, 6);
                    TILE_MULTIPLY(3, 5, 7);
                }
            }
            TILE_STORE(0, sums, 128); TILE_STORE(1, sums + 16, 128);
            if (both) { TILE_STORE(2, sums + 512, 128); TILE_STORE(3, sums + 528, 128); }
        }
    }
}

#endif

}  // namespace LLMC_NS
