// Products of int8 and int4 panels with rows rounded to 16 bits: integers do twice the work of floats
// per instruction (pmaddwd), and unpacking is a sign extension.
//
// Each row is scaled by its largest magnitude over K_GROUP inputs to 32767 and rounded. Sums within a
// group are exact; groups are added in order as floats. Both depend on the row alone.
// Rows that are small integers already keep their values: then sums of groups are exact as well, up to
// 2^24.
#pragma once
#include "workspace.h"

namespace LLMC_NS {

struct FixedRows {
    int32_t* pairs;  // per block of rows [K / 2][rows of the block], two int16 each
    float* scales;   // [groups][rows]
    float* sums;     // [steps][rows] of what was rounded, scaled back: what zeros are multiplied with
    int64_t half;    // K / 2, rounded up
    int64_t step;    // inputs whose products are summed as integers, at most K_GROUP

    FixedRows(float* memory, int64_t rows, int64_t K, const Groups& groups)
        : pairs(reinterpret_cast<int32_t*>(memory)), scales(memory + rows * ((K + 1) / 2)),
          sums(scales + rows * ceil_div(K, K_GROUP)), half((K + 1) / 2), step(K_GROUP) {
        // K_GROUP is a power of two: halving it comes to what divides both.
        while (groups.values && groups.size % step) step /= 2;
    }
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
                              bool with_sums, const FixedRows& out) {
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
                const float scale = out.scales[k / K_GROUP * rows + begin + r];
                for (int64_t i = 0; with_sums && i < size; i += out.step) {
                    int32_t total = 0;
                    for (int64_t j = i; j < i + out.step; j++) total += values[j];
                    out.sums[(k + i) / out.step * rows + begin + r] = (float)total * scale;
                }
                int32_t* to = out.pairs + begin * out.half + k / 2 * count + r;
                for (int64_t pair = 0; pair < (size + 1) / 2; pair++)
                    memcpy(to + pair * count, values + 2 * pair, 4);
            }
        }
    }
}

// Vector v of a pair of panel rows as int16 pairs.
template <int TYPE>
static inline vi load_words(const void* panel, int64_t pair, int v) {
    if constexpr (TYPE == LLMC_I8) {
        return widen_bytes(static_cast<const int8_t*>(panel) + paired_vector(pair, v));
    } else {
        const uint8_t* p = static_cast<const uint8_t*>(panel) + paired_vector(pair, v) / 2;
        const vi bytes = widen_unsigned(p), nibbles = (bytes | bytes << 12) & 0x000f000f;
        const vs32 signs = (vs32)splat_i(0x00080008);
        return (vi)(((vs32)nibbles ^ signs) - signs);
    }
}

// What the columns of a step are multiplied with: null where weights do not share scales by group.
struct StepScales {
    const float* scale;  // [32]
    const float* zero;   // [32]
    const float* sums;   // [rows] of FixedRows
};

// c[R, N vectors from v0] (+)= scales[r] * sum over pairs of a[pair, r] * weights. DIRECT reads the
// panel itself; otherwise `b` holds the group's rows unpacked, 32 pairs of int16 each.
template <int TYPE, int R, int N, bool DIRECT>
static inline void multiply_fixed_tile(const int32_t* a, const float* scales, const void* panel,
                                       int64_t first_pair, const vi* b, int64_t pairs, int v0,
                                       const StepScales& step, float* c, bool first) {
    vi sums[R][N];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) sums[r][v] = vi{};
    for (int64_t pair = 0; pair < pairs; pair++, a += R) {
        vi weights[N];
        if (DIRECT && N == VECTORS)
            __builtin_prefetch(static_cast<const char*>(panel) +
                               panel_bytes(TYPE, (first_pair + pair) * 2) + 2048);
        for (int v = 0; v < N; v++)
            weights[v] = DIRECT ? load_words<TYPE>(panel, first_pair + pair, v0 + v)
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
            const int column = (v0 + v) * W;
            vf total = __builtin_convertvector(sums[r][v], vf), before = first ? vf{} : load(to);
            if (step.scale) total = total * load(step.scale + column);
            if (step.zero) before = fma(load(step.zero + column), splat(step.sums[r]), before);
            store(to, fma(total, splat(scales[r]), before));
        }
}

template <int TYPE, int R, bool DIRECT>
static inline void multiply_fixed_rows(const int32_t* a, const float* scales, const void* panel,
                                       int64_t first_pair, const vi* b, int64_t pairs,
                                       const StepScales& step, float* c, bool first) {
    constexpr int N = DIRECT && R * VECTORS <= (W == 16 ? 24 : 8) ? VECTORS : 2;
    for (int v = 0; v < VECTORS; v += N)
        multiply_fixed_tile<TYPE, R, N, DIRECT>(a, scales, panel, first_pair, b, pairs, v, step, c,
                                                first);
}

template <int TYPE, bool DIRECT>
static inline void multiply_fixed_block(int64_t rows, const int32_t* a, const float* scales,
                                        const void* panel, int64_t first_pair, const vi* b,
                                        int64_t pairs, const StepScales& step, float* c,
                                        bool first) {
#define LLMC_CASE(R) \
    case R:                                                                                       \
        return multiply_fixed_rows<TYPE, R, DIRECT>(a, scales, panel, first_pair, b, pairs, step, \
                                                    c, first);
    switch (rows) {
        LLMC_CASE(1) LLMC_CASE(2) LLMC_CASE(3) LLMC_CASE(4) LLMC_CASE(5) LLMC_CASE(6)
#if LLMC_W == 16
        LLMC_CASE(7) LLMC_CASE(8) LLMC_CASE(9) LLMC_CASE(10) LLMC_CASE(11) LLMC_CASE(12)
#endif
    }
#undef LLMC_CASE
}

// c[rows, 32] = packed rows * panel, its groups scaled, if any.
template <int TYPE>
static inline void multiply_fixed(int64_t rows, const FixedRows& x, int64_t K, const void* panel,
                                  const Groups& groups, float* unpacked, float* c) {
    const int64_t blocks = ceil_div(rows, TILE_ROWS);
    vi* b = reinterpret_cast<vi*>(unpacked);
    for (int64_t k = 0; k < K; k += x.step) {
        const int64_t pairs = (min64(x.step, K - k) + 1) / 2, first_pair = k / 2;
        const float* scales = x.scales + k / K_GROUP * rows;
        StepScales step = {};
        if (groups.values) {
            step.scale = groups.of(k);
            step.zero = groups.zeros ? step.scale + PANEL : nullptr;
            step.sums = x.sums + k / x.step * rows;
        }
        if (blocks == 1) {
            multiply_fixed_block<TYPE, true>(rows, x.pairs + first_pair * rows, scales, panel,
                                             first_pair, b, pairs, step, c, k == 0);
            continue;
        }
        for (int64_t pair = 0; pair < pairs; pair++)
            for (int v = 0; v < VECTORS; v++)
                b[pair * VECTORS + v] = load_words<TYPE>(panel, first_pair + pair, v);
        const char* next = static_cast<const char*>(panel) + panel_bytes(TYPE, k + x.step);
        const int64_t lines = ceil_div(panel_bytes(TYPE, x.step) / 64, blocks);
        for (int64_t i = 0; i < blocks; i++) {
            const int64_t begin = block_start(rows, blocks, i);
            const int64_t tile = block_start(rows, blocks, i + 1) - begin;
            for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
            StepScales mine = step;
            if (mine.sums) mine.sums += begin;
            multiply_fixed_block<TYPE, false>(tile, x.pairs + begin * x.half + first_pair * tile,
                                              scales + begin, panel, first_pair, b, pairs, mine,
                                              c + begin * PANEL, k == 0);
        }
    }
}

}  // namespace LLMC_NS
