// Activations of vectors; plugins/activation/spec.py has their names in this order.
#pragma once
#include "simd.h"

namespace LLMC_NS {

enum Activation : int64_t {
    NO_ACTIVATION = 0,
    SILU = 1,
    GELU = 2,
    GELU_TANH = 3,
    RELU = 4,
    RELU2 = 5,
    QUICK_GELU = 6,
};

// x / (1 + e^-u): x times the logistic function of u.
static inline vf times_sigmoid(vf x, vf u) { return x / (1.0f + exp(-u)); }

static inline vf silu(vf x) { return times_sigmoid(x, x); }

// tanh(u) = 1 - 2 / (1 + e^2u)
static inline vf soft_cap(vf x, float cap) {
    return cap - 2.0f * cap / (1.0f + exp(x * (2.0f / cap)));
}

// x * Phi(x). Phi(-|x|) is half of erfc(z) at z = |x| / sqrt 2, and erfc(z) e^(z^2) a polynomial in
// t = 1 / (1 + z / 2): a least-squares fit on z in [0, 9.4], within 2.1e-7 of its value in float32.
static inline vf gelu(vf x) {
    const vf z = maximum(x, -x) * 0.70710678118654752f;
    const vf t = 1.0f / fma(z, splat(0.5f), splat(1.0f));
    vf p = splat(-0.0598980956f);
    p = fma(p, t, splat(0.288439531f));
    p = fma(p, t, splat(-0.494792512f));
    p = fma(p, t, splat(0.286242864f));
    p = fma(p, t, splat(-0.0318766251f));
    p = fma(p, t, splat(0.204735515f));
    p = fma(p, t, splat(0.242632268f));
    p = fma(p, t, splat(0.282433529f));
    p = fma(p, t, splat(0.282083477f));
    const vf tail = 0.5f * p * t * exp(-z * z);
    return x * (x > 0 ? 1.0f - tail : tail);
}

// x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
static inline vf gelu_tanh(vf x) {
    return times_sigmoid(x, x * fma(x * x, splat(0.0713548162f), splat(1.59576912161f)));
}

static inline vf relu(vf x) { return maximum(x, vf{}); }

static inline vf activate(Activation kind, vf x) {
    switch (kind) {
        case NO_ACTIVATION: return x;
        case SILU: return silu(x);
        case GELU: return gelu(x);
        case GELU_TANH: return gelu_tanh(x);
        case RELU: return relu(x);
        case RELU2: return relu(x) * relu(x);
        case QUICK_GELU: return times_sigmoid(x, x * 1.702f);
    }
    return x;
}

}  // namespace LLMC_NS
