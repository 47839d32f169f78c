// Products of rows that are int8 already with int8 panels, four k at once: AVX-512-VNNI and AMX-INT8.
//
// Sums are exact in int32: 128 * 128 * K stays below 2^31 for every K a thread's memory has room for.
// A panel keeps pairs of k; a lane of these instructions holds four k of one column, so two rows of
// pairs are woven into one first.
#pragma once
#include "tiles.h"
#include "workspace.h"

namespace LLMC_NS {

#if LLMC_W == 16

constexpr int64_t QUAD_BYTES = 64;  // four k of 16 columns: two rows of pairs, woven or not

// 64 bytes of a panel, pairs [2][16 columns][2], as quads [16 columns][4].
static inline vi weave_pairs(const int8_t* pairs) {
    vs32 words;
    memcpy(&words, pairs, sizeof words);
    const vs32 order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (vi)__builtin_shuffle(words, order);
}

// Where a panel has quad `quad` of its columns 16 * half and up.
static inline const int8_t* quad_of(const void* panel, int64_t quad, int half) {
    return static_cast<const int8_t*>(panel) + quad / 8 * 1024 + half * 512 + quad % 8 * QUAD_BYTES;
}

#if !LLMC_AMX

#if defined(__AVX512F__)
#define LLMC_QUADS __attribute__((target("avx512vnni")))
static inline bool has_quads() { return __builtin_cpu_supports("avx512vnni"); }
LLMC_QUADS static inline vi add_quads(vi sums, vi unsigned_bytes, vi signed_bytes) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
}
#else  // the emulated build
#define LLMC_QUADS
static inline bool has_quads() { return true; }
static inline vi add_quads(vi sums, vi unsigned_bytes, vi signed_bytes) {
    for (int shift = 0; shift < 32; shift += 8)
        sums += ((vi)((vu)unsigned_bytes >> shift) & 255) * ((signed_bytes << (24 - shift)) >> 24);
    return sums;
}
#endif

// x[rows, K] to blocks [K / 4][rows of the block] of four bytes each. The instruction wants one side
// unsigned: 128 is added, and 128 times the weights' sum taken away again.
static inline void pack_quads(const float* x, int64_t rows, int64_t K, uint8_t* packed) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS), depth = pad32(K);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t begin = block_start(rows, blocks, i);
        const int64_t count = block_start(rows, blocks, i + 1) - begin;
        uint8_t* to = packed + begin * depth;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < depth; k++)
                to[(k / 4 * count + r) * 4 + k % 4] =
                    (uint8_t)(128 + (k < K ? (int)x[(begin + r) * K + k] : 0));
    }
}

// c[R, 32] = packed rows * panel.
template <int R>
LLMC_QUADS static inline void multiply_quad_tile(const uint8_t* a, int64_t quads,
                                                 const void* panel, float* c) {
    vi sums[R][2], added[2] = {};
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = vi{};
    for (int64_t quad = 0; quad < quads; quad++, a += 4 * R) {
        vi weights[2];
        for (int half = 0; half < 2; half++) {
            const int8_t* from = quad_of(panel, quad, half);
            __builtin_prefetch(from + 2048);
            weights[half] = weave_pairs(from);
            added[half] = add_quads(added[half], splat_i((int32_t)0x80808080), weights[half]);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            int32_t four;
            memcpy(&four, a + 4 * r, 4);
            sums[r][0] = add_quads(sums[r][0], splat_i(four), weights[0]);
            sums[r][1] = add_quads(sums[r][1], splat_i(four), weights[1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        for (int half = 0; half < 2; half++)
            store(c + r * PANEL + half * W,
                  __builtin_convertvector(sums[r][half] - added[half], vf));
}

// c[rows, 32] = packed rows * panel.
static inline void multiply_quads(int64_t rows, const uint8_t* packed, int64_t K,
                                  const void* panel, float* c) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS), depth = pad32(K);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t begin = block_start(rows, blocks, i);
        const uint8_t* a = packed + begin * depth;
        float* to = c + begin * PANEL;
#define LLMC_CASE(R) \
    case R: multiply_quad_tile<R>(a, depth / 4, panel, to); break;
        switch (block_start(rows, blocks, i + 1) - begin) {
            LLMC_CASE(1) LLMC_CASE(2) LLMC_CASE(3) LLMC_CASE(4) LLMC_CASE(5) LLMC_CASE(6)
            LLMC_CASE(7) LLMC_CASE(8) LLMC_CASE(9) LLMC_CASE(10) LLMC_CASE(11) LLMC_CASE(12)
        }
#undef LLMC_CASE
    }
}

#else  // AMX

static inline bool has_quads() { return true; }

#if LLMC_AMX == 1
#define TILE_MULTIPLY_BYTES(c, a, b) _tile_dpbssd(c, a, b)
#else
static inline void emulated_multiply_bytes(int c, int a, int b) {
    for (int r = 0; r < 16; r++) {
        int32_t sums[16];
        memcpy(sums, emulated_tiles[c].row[r], 64);
        for (int k = 0; k < 64; k++)
            for (int n = 0; n < 16; n++)
                sums[n] += (int8_t)emulated_tiles[a].row[r][k] *
                           (int8_t)emulated_tiles[b].row[k / 4][n * 4 + k % 4];
        memcpy(emulated_tiles[c].row[r], sums, 64);
    }
}
#define TILE_MULTIPLY_BYTES(c, a, b) emulated_multiply_bytes(c, a, b)
#endif

constexpr int64_t BYTE_TILE = 16 * 64;   // bytes of an A-tile (16 rows, 64 k) or a B-tile (64 k, 16 columns)
constexpr int64_t BYTE_CHUNK = 512 / 64;  // steps of 64 k whose B-tiles are woven at once: 16 KB

static inline int64_t byte_steps(int64_t K) { return ceil_div(K, 64); }

// x[rows, K] to A-tiles [rows / 16][K / 64][16][64], padded with zeros.
static inline void pack_byte_tiles(const float* x, int64_t rows, int64_t K, int8_t* packed) {
    const int64_t steps = byte_steps(K);
    for (int64_t row = 0; row < (rows + 15) / 16 * 16; row++)
        for (int64_t step = 0; step < steps; step++) {
            int8_t* to = packed + (row / 16 * steps + step) * BYTE_TILE + row % 16 * 64;
            const int64_t count = row < rows ? min64(64, K - step * 64) : 0;
            const float* from = x + row * K + step * 64;
            for (int64_t k = 0; k < count; k++) to[k] = (int8_t)from[k];
            for (int64_t k = count; k < 64; k++) to[k] = 0;
        }
}

// Steps [first, first + count) of a panel to B-tiles [count][2 halves]; what is past its end is zero.
static inline void weave_panel(const void* panel, int64_t K, int64_t first, int64_t count,
                               int8_t* out) {
    const int64_t quads = pad32(K) / 4;
    for (int64_t step = 0; step < count; step++)
        for (int half = 0; half < 2; half++)
            for (int64_t i = 0; i < 16; i++, out += QUAD_BYTES) {
                const int64_t quad = (first + step) * 16 + i;
                const vi woven = quad < quads ? weave_pairs(quad_of(panel, quad, half)) : vi{};
                memcpy(out, &woven, sizeof woven);
            }
}

// c[rows padded to 16, 32] = packed rows * panel. c holds integers until the last step.
static inline void multiply_byte_tiles(int64_t rows, const int8_t* packed, int64_t K,
                                       const void* panel, float* woven, float* c) {
    const int64_t steps = byte_steps(K), row_tiles = (rows + 15) / 16;
    int8_t* b = reinterpret_cast<int8_t*>(woven);
    for (int64_t start = 0; start < steps; start += BYTE_CHUNK) {
        const int64_t count = min64(BYTE_CHUNK, steps - start);
        weave_panel(panel, K, start, count, b);
        for (int64_t tile = 0; tile < row_tiles; tile += 2) {
            const bool both = tile + 1 < row_tiles;
            float* sums = c + tile * 16 * PANEL;
            const int8_t* a = packed + (tile * steps + start) * BYTE_TILE;
            const int8_t* next = a + (both ? steps * BYTE_TILE : 0);
            if (start == 0) {
                TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
            } else {
                TILE_LOAD(0, sums, 128); TILE_LOAD(1, sums + 16, 128);
                if (both) { TILE_LOAD(2, sums + 512, 128); TILE_LOAD(3, sums + 528, 128); }
            }
            for (int64_t step = 0; step < count; step++) {
                TILE_LOAD(6, b + step * 2 * BYTE_TILE, 64);
                TILE_LOAD(7, b + (step * 2 + 1) * BYTE_TILE, 64);
                TILE_LOAD(4, a + step * BYTE_TILE, 64);
                TILE_MULTIPLY_BYTES(0, 4, 6);
                TILE_MULTIPLY_BYTES(1, 4, 7);
                if (both) {
                    TILE_LOAD(5, next + step * BYTE_TILE, 64);
                    TILE_MULTIPLY_BYTES(2, 5, 6);
                    TILE_MULTIPLY_BYTES(3, 5, 7);
                }
            }
            TILE_STORE(0, sums, 128); TILE_STORE(1, sums + 16, 128);
            if (both) { TILE_STORE(2, sums + 512, 128); TILE_STORE(3, sums + 528, 128); }
        }
    }
    for (int64_t i = 0; i < rows * PANEL; i += W) {
        vi sums;
        memcpy(&sums, c + i, sizeof sums);
        store(c + i, __builtin_convertvector(sums, vf));
    }
}

#endif
#endif

}  // namespace LLMC_NS
