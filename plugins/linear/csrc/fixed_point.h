// Products of int8 panels with rows rounded to 16 bits: integers do twice the work of floats per
// instruction (pmaddwd), and unpacking is one sign extension.
//
// Each row is scaled by its largest magnitude over K_GROUP inputs to 32767 and rounded. Sums within a
// group are exact; groups are added in order as floats. Both depend on the row alone.
// Rows that are small integers already keep their values: then sums of groups are exact as well, up to
// 2^24.
#pragma once
#include "plan.h"

namespace LLMC_NS {

struct FixedRows {
    int32_t* pairs;  // per block of rows [K / 2][rows of the block], two int16 each
    float* scales;   // [groups][rows]
    int64_t half;    // K / 2, rounded up

    FixedRows(float* memory, int64_t rows, int64_t K)
        : pairs(reinterpret_cast<int32_t*>(memory)), scales(memory + rows * ((K + 1) / 2)),
          half((K + 1) / 2) {}
};

// Returns the scale of x[0, count) and writes its rounded values to out, padded to even.
static inline float round_group(const float* x, int64_t count, int16_t* out) {
    vf most = {};
    int64_t k = 0;
    for (; k + W <= count; k += W) most = maximum(maximum(load(x + k), -load(x + k)), most);
    float largest_value = largest(most);
    for (; k < count; k++) {
        const float magnitude = x[k] < 0 ? -x[k] : x[k];
        if (magnitude > largest_value) largest_value = magnitude;
    }
    const float inverse = largest_value > 0 ? 32767.0f / largest_value : 0.0f;
    // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
    const float shift = 12582912.0f;
    for (k = 0; k < count; k++) out[k] = (int16_t)(int32_t)((x[k] * inverse + shift) - shift);
    if (count % 2) out[count] = 0;
    return largest_value / 32767.0f;
}

static inline float copy_integers(const float* x, int64_t count, int16_t* out) {
    for (int64_t k = 0; k < count; k++) out[k] = (int16_t)(int32_t)x[k];
    if (count % 2) out[count] = 0;
    return 1.0f;
}

static inline void pack_fixed(const float* x, int64_t rows, int64_t K, bool integers,
                              const FixedRows& out) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t begin = block_start(rows, blocks, i);
        const int64_t count = block_start(rows, blocks, i + 1) - begin;
        for (int64_t r = 0; r < count; r++) {
            for (int64_t k = 0; k < K; k += K_GROUP) {
                int16_t values[K_GROUP];
                const int64_t size = min64(K_GROUP, K - k);
                const float* from = x + (begin + r) * K + k;
                out.scales[k / K_GROUP * rows + begin + r] =
                    integers ? copy_integers(from, size, values) : round_group(from, size, values);
                int32_t* to = out.pairs + begin * out.half + k / 2 * count + r;
                for (int64_t pair = 0; pair < (size + 1) / 2; pair++)
                    memcpy(to + pair * count, values + 2 * pair, 4);
            }
        }
    }
}

// Vector v of a pair of panel rows as int16 pairs.
static inline vi load_words(const int8_t* panel, int64_t pair, int v) {
    return widen_bytes(panel + paired_vector(pair, v));
}

// c[R, N vectors from v0] (+)= scales[r] * sum over pairs of a[pair, r] * weights. DIRECT reads the
// panel itself; otherwise `b` holds the group's rows unpacked, 32 pairs of int16 each.
template <int R, int N, bool DIRECT>
static inline void multiply_fixed_tile(const int32_t* a, const float* scales, const int8_t* panel,
                                       int64_t first_pair, const vi* b, int64_t pairs, int v0,
                                       float* c, bool first) {
    vi sums[R][N];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) sums[r][v] = vi{};
    for (int64_t pair = 0; pair < pairs; pair++, a += R) {
        vi weights[N];
        if (DIRECT && N == VECTORS)
            __builtin_prefetch(panel + (first_pair + pair) * 2 * PANEL + 2048);
        for (int v = 0; v < N; v++)
            weights[v] = DIRECT ? load_words(panel, first_pair + pair, v0 + v)
                                : b[pair * VECTORS + v0 + v];
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const vi x = splat_i(a[r]);
#pragma GCC unroll 8
            for (int v = 0; v < N; v++) sums[r][v] += multiply_pairs(x, weights[v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) {
            float* to = c + r * PANEL + (v0 + v) * W;
            store(to, fma(__builtin_convertvector(sums[r][v], vf), splat(scales[r]),
                          first ? vf{} : load(to)));
        }
}

template <int R, bool DIRECT>
static inline void multiply_fixed_rows(const int32_t* a, const float* scales, const int8_t* panel,
                                       int64_t first_pair, const vi* b, int64_t pairs, float* c,
                                       bool first) {
    constexpr int N = DIRECT && R * VECTORS <= (W == 16 ? 24 : 8) ? VECTORS : 2;
    for (int v = 0; v < VECTORS; v += N)
        multiply_fixed_tile<R, N, DIRECT>(a, scales, panel, first_pair, b, pairs, v, c, first);
}

template <bool DIRECT>
static inline void multiply_fixed_block(int64_t rows, const int32_t* a, const float* scales,
                                        const int8_t* panel, int64_t first_pair, const vi* b,
                                        int64_t pairs, float* c, bool first) {
#define LLMC_CASE(R) \
    case R: return multiply_fixed_rows<R, DIRECT>(a, scales, panel, first_pair, b, pairs, c, first);
    switch (rows) {
        LLMC_CASE(1) LLMC_CASE(2) LLMC_CASE(3) LLMC_CASE(4) LLMC_CASE(5) LLMC_CASE(6)
#if LLMC_W == 16
        LLMC_CASE(7) LLMC_CASE(8) LLMC_CASE(9) LLMC_CASE(10) LLMC_CASE(11) LLMC_CASE(12)
#endif
    }
#undef LLMC_CASE
}

// c[rows, 32] = packed rows * panel.
static inline void multiply_fixed(int64_t rows, const FixedRows& x, int64_t K, const int8_t* panel,
                                  float* unpacked, float* c) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS);
    vi* b = reinterpret_cast<vi*>(unpacked);
    for (int64_t k = 0; k < K; k += K_GROUP) {
        const int64_t pairs = (min64(K_GROUP, K - k) + 1) / 2, first_pair = k / 2;
        const float* scales = x.scales + k / K_GROUP * rows;
        if (blocks == 1) {
            multiply_fixed_block<true>(rows, x.pairs + first_pair * rows, scales, panel, first_pair,
                                       b, pairs, c, k == 0);
            continue;
        }
        for (int64_t pair = 0; pair < pairs; pair++)
            for (int v = 0; v < VECTORS; v++)
                b[pair * VECTORS + v] = load_words(panel, first_pair + pair, v);
        const int8_t* next = panel + (k + K_GROUP) * PANEL;
        const int64_t lines = ceil_div(K_GROUP * PANEL / 64, blocks);
        for (int64_t i = 0; i < blocks; i++) {
            const int64_t begin = block_start(rows, blocks, i);
            const int64_t tile = block_start(rows, blocks, i + 1) - begin;
            for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
            multiply_fixed_block<false>(tile, x.pairs + begin * x.half + first_pair * tile,
                                        scales + begin, panel, first_pair, b, pairs,
                                        c + begin * PANEL, k == 0);
        }
    }
}

}  // namespace LLMC_NS
