// Panels: 32 columns of a matrix [K, 32], stored so that every instruction set reads them cheaply.
//
// fp32 and fp16: [K][32]. bf16, int8 and e4m3: [K/32][2 halves][16 k-pairs][16 columns][2], which is the
// order of AMX B-tiles; elsewhere a lane of 32 (16) bits holds k and k+1 of one column, so a shift
// and a mask give two vectors of floats. int4 and e2m1 are in the same order, k in the lower four bits
// of a byte and k+1 in the upper. K is padded to a multiple of 32 with zeros.
// Weights, key blocks (K = head dim, columns = tokens) and value blocks (K = tokens, columns = head
// dim) are all panels. Rows [r][32] of accumulators are called c.
#pragma once
#include "abi.h"
#include "simd.h"

namespace LLMC_NS {

constexpr int PANEL = 32;
constexpr int VECTORS = PANEL / W;  // of a panel row

static inline int64_t type_bits(int type) {
    switch (type) {
        case LLMC_F32: return 32;
        case LLMC_F16: case LLMC_BF16: return 16;
        case LLMC_I4: case LLMC_F4: return 4;
        default: return 8;
    }
}
// Bytes of k_count rows of a panel.
static inline int64_t panel_bytes(int type, int64_t k_count) {
    return k_count * PANEL * type_bits(type) / 8;
}
static inline int64_t pad32(int64_t n) { return (n + 31) / 32 * 32; }

// Elements before (k, column) in a panel of pairs.
static inline int64_t paired_offset(int64_t k, int64_t column) {
    return ((k / 32 * 2 + column / 16) * 16 + k % 32 / 2) * 32 + column % 16 * 2 + k % 2;
}
// Elements before vector v of a k-pair. Unsigned, so that it is shifts and masks.
static inline int64_t paired_vector(uint64_t pair, int v) {
    return ((pair >> 4) << 10) + ((pair & 15) << 5) + (v * W / 16 << 9) + v * W % 16 * 2;
}
// Elements before (k, column), any type.
static inline int64_t panel_offset(int type, int64_t k, int64_t column) {
    return type == LLMC_F32 || type == LLMC_F16 ? k * PANEL + column : paired_offset(k, column);
}

// Vector v (columns v*W..) of rows 2*pair and 2*pair + 1.
template <int TYPE>
static inline void load_pair(const void* panel, int64_t pair, int v, vf& even, vf& odd) {
    if constexpr (TYPE == LLMC_F32) {
        const float* p = static_cast<const float*>(panel) + pair * 2 * PANEL + v * W;
        even = load(p);
        odd = load(p + PANEL);
    } else if constexpr (TYPE == LLMC_F16) {
        const uint16_t* p = static_cast<const uint16_t*>(panel) + pair * 2 * PANEL + v * W;
        even = load_f16(p);
        odd = load_f16(p + PANEL);
    } else if constexpr (TYPE == LLMC_I4 || TYPE == LLMC_F4) {
        const uint8_t* bytes = static_cast<const uint8_t*>(panel) + paired_vector(pair, v) / 2;
        const vi wide = widen_unsigned(bytes);
        if constexpr (TYPE == LLMC_I4) {
            even = __builtin_convertvector((wide << 28) >> 28, vf);
            odd = __builtin_convertvector((wide << 24) >> 28, vf);
        } else {
            even = e2m1_to_f32(wide);
            odd = e2m1_to_f32(wide >> 4);
        }
    } else {
        const int64_t offset = paired_vector(pair, v);
        if constexpr (TYPE == LLMC_BF16) {
            vu bits = (vu)load(reinterpret_cast<const float*>(
                static_cast<const uint16_t*>(panel) + offset));
            even = (vf)(bits << 16);
            odd = (vf)(bits & 0xffff0000u);
        } else {
            vs16 pairs;
            memcpy(&pairs, static_cast<const int8_t*>(panel) + offset, sizeof pairs);
            vi wide = __builtin_convertvector(pairs, vi);
            if constexpr (TYPE == LLMC_I8) {
                even = __builtin_convertvector((wide << 24) >> 24, vf);
                odd = __builtin_convertvector(wide >> 8, vf);
            } else {
                even = (vf)(((wide << 24) >> 4) & (int32_t)0x87f00000) * 0x1p120f;
                odd = (vf)(((wide << 16) >> 4) & (int32_t)0x87f00000) * 0x1p120f;
            }
        }
    }
}

// Writes rows [k_begin, k_begin + k_count) of a panel to out [k_count, 32]; both even.
template <int TYPE>
static inline void unpack(const void* panel, int64_t k_begin, int64_t k_count, float* out) {
    for (int64_t k = 0; k < k_count; k += 2, out += 2 * PANEL) {
        for (int v = 0; v < VECTORS; v++) {
            vf even, odd;
            load_pair<TYPE>(panel, (k_begin + k) / 2, v, even, odd);
            store(out + v * W, even);
            store(out + PANEL + v * W, odd);
        }
    }
}

// Scales (and zeros) of a panel whose weights share them over `size` neighbouring k, which is even:
// [K / size][32] scales, each group's followed by its 32 zeros if there are any.
struct Groups {
    const float* values;  // null: the panel's weights are what they are
    int64_t size;
    bool zeros;

    const float* of(int64_t k) const { return values + k / size * PANEL * (zeros ? 2 : 1); }
};

// unpack(), each weight times its group's scale.
template <int TYPE>
static inline void unpack_grouped(const void* panel, const Groups& groups, int64_t k_begin,
                                  int64_t k_count, float* out) {
    for (int64_t k = k_begin, end; k < k_begin + k_count; k = end) {
        end = (k / groups.size + 1) * groups.size;
        if (end > k_begin + k_count) end = k_begin + k_count;
        const float* values = groups.of(k);
        vf scale[VECTORS];
        for (int v = 0; v < VECTORS; v++) scale[v] = load(values + v * W);
        for (int64_t pair = k / 2; pair < end / 2; pair++, out += 2 * PANEL) {
            for (int v = 0; v < VECTORS; v++) {
                vf even, odd;
                load_pair<TYPE>(panel, pair, v, even, odd);
                store(out + v * W, even * scale[v]);
                store(out + PANEL + v * W, odd * scale[v]);
            }
        }
    }
}

// c[R, 2W] (+)= a[R, k] * b[k, 2W], the sum over k in order, one fma at a time. a(r, k) is
// a[r * a_row + k * a_k]; b has rows of 32 floats, c too. `first` starts from zero.
template <int R>
static inline void multiply_tile(const float* a, int64_t a_row, int64_t a_k, const float* b,
                                 int64_t k_count, float* c, bool first) {
    vf sums[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) sums[r][v] = first ? vf{} : load(c + r * PANEL + v * W);
    for (int64_t k = 0; k < k_count; k++) {
        vf b0 = load(b), b1 = load(b + W);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            vf x = splat(a[r * a_row]);
            sums[r][0] = fma(x, b0, sums[r][0]);
            sums[r][1] = fma(x, b1, sums[r][1]);
        }
        a += a_k;
        b += PANEL;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        for (int v = 0; v < 2; v++) store(c + r * PANEL + v * W, sums[r][v]);
}

constexpr int TILE_ROWS = W == 16 ? 12 : 6;  // what the registers hold as accumulators

static inline void multiply_rows(int rows, const float* a, int64_t a_row, int64_t a_k,
                                 const float* b, int64_t k_count, float* c, bool first) {
#define LLMC_CASE(R) \
    case R: return multiply_tile<R>(a, a_row, a_k, b, k_count, c, first);
    switch (rows) {
        LLMC_CASE(1) LLMC_CASE(2) LLMC_CASE(3) LLMC_CASE(4) LLMC_CASE(5) LLMC_CASE(6)
#if LLMC_W == 16
        LLMC_CASE(7) LLMC_CASE(8) LLMC_CASE(9) LLMC_CASE(10) LLMC_CASE(11) LLMC_CASE(12)
#endif
    }
#undef LLMC_CASE
}

// Splits `rows` into the fewest blocks of at most TILE_ROWS, as even as can be: the start of block i.
static inline int64_t block_start(int64_t rows, int64_t blocks, int64_t i) {
    return rows / blocks * i + (i < rows % blocks ? i : rows % blocks);
}

// c[R, N*W] (+)= a[R, K] * panel[K, columns of vectors v0..v0+N): multiply_tile with the panel
// unpacked in registers, for when its rows are used once. Same sums in the same order.
template <int TYPE, int R, int N>
static inline void multiply_packed(const float* a, int64_t a_row, const void* panel,
                                   int64_t k_count, int v0, float* c, bool first) {
    vf sums[R][N];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++)
            sums[r][v] = first ? vf{} : load(c + r * PANEL + (v0 + v) * W);
    int64_t pairs = k_count / 2;
    constexpr int64_t PREFETCH_PAIRS = 32;  // about 2 to 4 KB ahead
    for (int64_t pair = 0; pair < pairs; pair++) {
        if constexpr (N == VECTORS) {
            const char* ahead = static_cast<const char*>(panel) +
                                panel_bytes(TYPE, (pair + PREFETCH_PAIRS) * 2);
            __builtin_prefetch(ahead);
            if constexpr (TYPE == LLMC_F32 || TYPE == LLMC_F16 || TYPE == LLMC_BF16)
                __builtin_prefetch(ahead + 64);
        }
        vf even[N], odd[N];
        for (int v = 0; v < N; v++) load_pair<TYPE>(panel, pair, v0 + v, even[v], odd[v]);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            vf x = splat(a[r * a_row + pair * 2]), y = splat(a[r * a_row + pair * 2 + 1]);
#pragma GCC unroll 8
            for (int v = 0; v < N; v++) sums[r][v] = fma(x, even[v], sums[r][v]);
#pragma GCC unroll 8
            for (int v = 0; v < N; v++) sums[r][v] = fma(y, odd[v], sums[r][v]);
        }
    }
    if (k_count % 2) {
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) {
            vf even, odd;
            load_pair<TYPE>(panel, pairs, v0 + v, even, odd);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
                sums[r][v] = fma(splat(a[r * a_row + pairs * 2]), even, sums[r][v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) store(c + r * PANEL + (v0 + v) * W, sums[r][v]);
}

constexpr int FEW_ROWS = 6;

template <int TYPE, int R, int N>
static inline void multiply_across(const float* a, int64_t a_row, const void* panel,
                                   int64_t k_count, float* c, bool first) {
    for (int v = 0; v < VECTORS; v += N)
        multiply_packed<TYPE, R, N>(a, a_row, panel, k_count, v, c, first);
}

// multiply_packed for all 32 columns and up to FEW_ROWS rows.
template <int TYPE>
static inline void multiply_few(int64_t rows, const float* a, int64_t a_row, const void* panel,
                                int64_t k_count, float* c, bool first) {
    constexpr int THREE = W == 4 ? 2 : VECTORS;  // vectors at once, as registers allow
    switch (rows) {
        case 1: return multiply_across<TYPE, 1, VECTORS>(a, a_row, panel, k_count, c, first);
        case 2: return multiply_across<TYPE, 2, W == 4 ? 4 : VECTORS>(a, a_row, panel, k_count, c, first);
        case 3: return multiply_across<TYPE, 3, THREE>(a, a_row, panel, k_count, c, first);
        case 4: return multiply_across<TYPE, 4, 2>(a, a_row, panel, k_count, c, first);
        case 5: return multiply_across<TYPE, 5, 2>(a, a_row, panel, k_count, c, first);
        case 6: return multiply_across<TYPE, 6, 2>(a, a_row, panel, k_count, c, first);
    }
}

}  // namespace LLMC_NS
