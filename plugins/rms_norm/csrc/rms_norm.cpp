// y = x / sqrt(mean(x^2) + epsilon) * weight, per row.
// dim: 0 columns. param: 0 epsilon. tensor: 0 weight (fp32).
#include <math.h>

#include "rows.h"
#include "simd.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    const float* weight = static_cast<const float*>(op.tensor[0]);
    for (int64_t row = task * count; row < end; row++) {
        const float* x = step.buffers[op.input] + row * columns;
        float* y = step.buffers[op.output] + row * columns;
        vf squares[2] = {};
        int64_t i = 0;
        for (; i + 2 * W <= columns; i += 2 * W) {
            squares[0] = fma(load(x + i), load(x + i), squares[0]);
            squares[1] = fma(load(x + i + W), load(x + i + W), squares[1]);
        }
        float total = sum(squares[0] + squares[1]);
        for (; i < columns; i++) total += x[i] * x[i];
        const float factor = 1.0f / sqrtf(total / (float)columns + op.param[0]);
        for (i = 0; i < columns; i++) y[i] = x[i] * factor * weight[i];
    }
}

extern const Kernel rms_norm = {num_tasks, run};

}  // namespace LLMC_NS
