// Floats to the nearest number of a smaller format, halves to even; what is out of range becomes the
// format's largest. Scalar code that compilers turn into vectors.
//
// Adding and taking away 1.5 * 2^n rounds to a multiple of 2^(n - 23).
// Sources: OCP 8-bit Floating Point Specification 1.0 (E4M3), OCP Microscaling Formats 1.0 (E2M1).
#pragma once
#include "simd.h"

namespace LLMC_NS {

constexpr float E4M3_MAX = 448, E2M1_MAX = 6;

static inline float magnitude_of(float x) { return __builtin_fabsf(x); }

static inline float round_int8(float x) {
    const float low = x < -128.0f ? -128.0f : x, clamped = low > 127.0f ? 127.0f : low;
    return (clamped + 12582912.0f) - 12582912.0f;
}

static inline float round_e4m3(float x) {
    const float magnitude = magnitude_of(x);
    const float clamped = magnitude > E4M3_MAX ? E4M3_MAX : magnitude;
    const float denormal = (clamped + 24576.0f) - 24576.0f;  // multiples of 2^-9
    uint32_t bits;
    memcpy(&bits, &clamped, 4);
    bits = (bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000u;
    float normal;
    memcpy(&normal, &bits, 4);
    return __builtin_copysignf(clamped < 0x1p-6f ? denormal : normal, x);
}

// The byte of a number that round_e4m3 gave.
static inline uint8_t e4m3_code(float rounded) {
    const float moved = magnitude_of(rounded) * 0x1p-120f;  // the exponent's bias; exact
    uint32_t bits;
    memcpy(&bits, &moved, 4);
    return (uint8_t)(bits >> 20 | (__builtin_signbit(rounded) ? 0x80 : 0));
}

static inline float round_e2m1(float x) {
    const float magnitude = magnitude_of(x);
    const float clamped = magnitude > E2M1_MAX ? E2M1_MAX : magnitude;
    const float halves = (clamped + 6291456.0f) - 6291456.0f;
    const float wholes = (clamped + 12582912.0f) - 12582912.0f;
    const float twos = (clamped + 25165824.0f) - 25165824.0f;
    return __builtin_copysignf(clamped < 2 ? halves : clamped < 4 ? wholes : twos, x);
}

}  // namespace LLMC_NS
