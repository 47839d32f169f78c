// How an expert's activated half gates the other.
#pragma once
#include "kernel.h"
#include "simd.h"

namespace LLMC_NS {

enum Gate { SILU = 0, GELU_TANH = 1, CLAMPED_SWIGLU = 2 };

static inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

// Source: arXiv 1606.08415, the approximation by tanh; (1 + tanh(y)) / 2 is sigmoid(2 y).
static inline vf gelu_tanh(vf x) {
    const vf cubic = fma(x * x, splat(0.044715f), splat(1.0f));
    return x * sigmoid(x * cubic * 1.5957691216057308f);
}

// Source: openai/gpt-oss gpt_oss/torch/model.py, swiglu.
static inline vf clamped_swiglu(vf x, vf other, float alpha, float limit) {
    x = minimum(x, splat(limit));
    other = maximum(minimum(other, splat(limit)), splat(-limit));
    return x * sigmoid(x * alpha) * (other + 1.0f);
}

static inline vf gate(const LlmcOp& op, vf x, vf other) {
    if (op.dim[7] == CLAMPED_SWIGLU) return clamped_swiglu(x, other, op.param[0], op.param[1]);
    return (op.dim[7] == GELU_TANH ? gelu_tanh(x) : silu(x)) * other;
}

}  // namespace LLMC_NS
