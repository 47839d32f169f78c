// How an expert's activated half gates the other.
#pragma once
#include "activations.h"
#include "kernel.h"

namespace LLMC_NS {

enum Gate { SILU_GATE = 0, GELU_TANH_GATE = 1, CLAMPED_SWIGLU = 2 };

static inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

// Source: openai/gpt-oss gpt_oss/torch/model.py, swiglu.
static inline vf clamped_swiglu(vf x, vf other, float alpha, float limit) {
    x = minimum(x, splat(limit));
    other = maximum(minimum(other, splat(limit)), splat(-limit));
    return x * sigmoid(x * alpha) * (other + 1.0f);
}

static inline vf gate(const LlmcOp& op, vf x, vf other) {
    if (op.dim[7] == CLAMPED_SWIGLU) return clamped_swiglu(x, other, op.param[0], op.param[1]);
    return (op.dim[7] == GELU_TANH_GATE ? gelu_tanh(x) : silu(x)) * other;
}

}  // namespace LLMC_NS
