// Vectors of LLMC_W floats in the namespace of one instruction set, from one source.
//
// GCC's vector types do everything but fma and half precision. Every sum of products goes through
// fma(), so all instances of a kernel round alike (the build forbids implicit contraction).
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace LLMC_NS {

constexpr int W = LLMC_W;

typedef float vf __attribute__((vector_size(W * 4), may_alias));
typedef int32_t vi __attribute__((vector_size(W * 4), may_alias));
typedef uint32_t vu __attribute__((vector_size(W * 4), may_alias));
typedef int16_t vs16 __attribute__((vector_size(W * 2), may_alias));
typedef int16_t vs32 __attribute__((vector_size(W * 4), may_alias));
typedef float vf_unaligned __attribute__((vector_size(W * 4), aligned(4), may_alias));

static inline vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
static inline void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }
static inline vf splat(float x) { return x - vf{}; }
static inline vi splat_i(int32_t x) { return x - vi{}; }

static inline vf fma(vf a, vf b, vf c) {
#if LLMC_W == 16 && defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LLMC_W == 16
    // The emulated build: two halves of what AVX-512 does at once.
    __m256 out[2], in[3][2];
    memcpy(in[0], &a, 64);
    memcpy(in[1], &b, 64);
    memcpy(in[2], &c, 64);
    for (int h = 0; h < 2; h++) out[h] = _mm256_fmadd_ps(in[0][h], in[1][h], in[2][h]);
    vf result;
    memcpy(&result, out, 64);
    return result;
#elif LLMC_W == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// Lanes are pairs of int16: the sum of the two products, in int32.
static inline vi multiply_pairs(vi a, vi b) {
#if LLMC_W == 16 && defined(__AVX512BW__)
    return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif LLMC_W == 16
    __m256i out[2], in[2][2];
    memcpy(in[0], &a, 64);
    memcpy(in[1], &b, 64);
    for (int h = 0; h < 2; h++) out[h] = _mm256_madd_epi16(in[0][h], in[1][h]);
    vi result;
    memcpy(&result, out, 64);
    return result;
#elif LLMC_W == 8
    return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// 2W int8 to int16. Intrinsics, because gcc 12 widens vectors of bytes in halves.
static inline vi widen_bytes(const int8_t* p) {
#if LLMC_W == 16 && defined(__AVX512BW__)
    return (vi)_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif LLMC_W == 8
    return (vi)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif LLMC_W == 4 && defined(__x86_64__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return (vi)_mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
#else
    typedef int8_t bytes __attribute__((vector_size(2 * W), may_alias));
    typedef int16_t words __attribute__((vector_size(4 * W), may_alias));
    bytes packed;
    memcpy(&packed, p, sizeof packed);
    return (vi)__builtin_convertvector(packed, words);
#endif
}

// W bytes to int32, zeros above.
static inline vi widen_unsigned(const uint8_t* p) {
#if LLMC_W == 16 && defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif LLMC_W == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
    typedef uint8_t bytes __attribute__((vector_size(W), may_alias));
    bytes packed;
    memcpy(&packed, p, W);
    return __builtin_convertvector(packed, vi);
#endif
}

// The e2m1 number in the lowest four bits of each lane.
static inline vf e2m1_to_f32(vi codes) {
#if LLMC_W == 8
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const vi found = (vi)_mm256_permutevar8x32_ps(magnitudes, (__m256i)codes);
    return (vf)(found | (codes << 28 & INT32_MIN));
#else
    // Sign, exponent and mantissa where a float has them; the factor moves the exponent's bias,
    // which is exact, denormals included.
    return (vf)((codes << 28) >> 6 & (int32_t)0x81c00000) * 0x1p126f;
#endif
}

static inline vf maximum(vf a, vf b) { return a > b ? a : b; }
static inline vf minimum(vf a, vf b) { return a < b ? a : b; }

static inline float sum(vf v) {
    float lanes[W];
    store(lanes, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}
static inline float largest(vf v) {
    float lanes[W];
    store(lanes, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            if (lanes[i + half] > lanes[i]) lanes[i] = lanes[i + half];
    return lanes[0];
}

// e^x with about 1 ulp of error between -87 and 88, clamped outside.
// Source: the Cephes library's expf (S. Moshier): range reduction by ln 2 in two parts, degree-5
// polynomial.
static inline vf exp(vf x) {
    x = maximum(minimum(x, splat(88.0f)), splat(-87.0f));
    vf n = fma(x, splat(1.44269504088896341f), splat(12582912.0f)) - 12582912.0f;
    vf r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return p * (vf)power;
}

static inline float f16_to_f32(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 0x1p112f;  // moves the exponent's bias; exact, denormals included
    if ((h & 0x7c00) == 0x7c00) magnitude |= 0x7f800000;
    else memcpy(&magnitude, &value, 4);
    magnitude |= sign;
    memcpy(&value, &magnitude, 4);
    return value;
}

// Rounds to nearest even; what fp16 cannot hold becomes its largest number, not infinity.
static inline uint16_t f32_to_f16(float x) {
    uint32_t bits, sign;
    memcpy(&bits, &x, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7bff;
    if (bits < 0x38800000) {  // a denormal of fp16: let the adder round
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return sign | (bits - 0x3f000000);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | ((bits - 0x38000000) >> 13);
}

static inline uint16_t f32_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline float bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// W halves to floats.
static inline vf load_f16(const uint16_t* p) {
#if LLMC_W == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif LLMC_W == 16 && defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
    float lanes[W];
    for (int i = 0; i < W; i++) lanes[i] = f16_to_f32(p[i]);
    return load(lanes);
#endif
}

}  // namespace LLMC_NS
