// Sums over the columns of a row, and the normalizations built of them. Each is summed in one order,
// whatever rows surround it.
#pragma once
#include <math.h>

#include "simd.h"

namespace LLMC_NS {

static inline float sum_of(const float* x, int64_t columns) {
    vf sums[2] = {};
    int64_t i = 0;
    for (; i + 2 * W <= columns; i += 2 * W) {
        sums[0] = sums[0] + load(x + i);
        sums[1] = sums[1] + load(x + i + W);
    }
    float total = sum(sums[0] + sums[1]);
    for (; i < columns; i++) total += x[i];
    return total;
}

// Of x - mean.
static inline float sum_of_squares(const float* x, int64_t columns, float mean) {
    vf squares[2] = {};
    int64_t i = 0;
    for (; i + 2 * W <= columns; i += 2 * W) {
        const vf a = load(x + i) - mean, b = load(x + i + W) - mean;
        squares[0] = fma(a, a, squares[0]);
        squares[1] = fma(b, b, squares[1]);
    }
    float total = sum(squares[0] + squares[1]);
    for (; i < columns; i++) total += (x[i] - mean) * (x[i] - mean);
    return total;
}

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias; bias may be null.
static inline void normalize_layer(const float* x, int64_t columns, float epsilon,
                                   const float* weight, const float* bias, float* y) {
    const float mean = sum_of(x, columns) / (float)columns;
    const float variance = sum_of_squares(x, columns, mean) / (float)columns;
    const float factor = 1.0f / sqrtf(variance + epsilon);
    for (int64_t i = 0; i < columns; i++) {
        const float value = (x[i] - mean) * factor * weight[i];
        y[i] = bias ? value + bias[i] : value;
    }
}

// y = x * factor * weight, where factor is 1 / sqrt(mean square + epsilon).
static inline void scale_row(const float* x, int64_t columns, float mean_square, float epsilon,
                             const float* weight, float* y) {
    const float factor = 1.0f / sqrtf(mean_square + epsilon);
    for (int64_t i = 0; i < columns; i++) y[i] = x[i] * factor * weight[i];
}

}  // namespace LLMC_NS
