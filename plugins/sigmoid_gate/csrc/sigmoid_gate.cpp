// y = x * sigmoid(gate). input: x [T, columns]; input2: gate [T, 1]. dim: 0 columns.
#include "rows.h"
#include "simd.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    for (int64_t row = task * count; row < end; row++) {
        float lanes[W];
        store(lanes, 1.0f / (1.0f + exp(splat(-step.buffers[op.input2][row]))));
        const float* x = step.buffers[op.input] + row * columns;
        float* y = step.buffers[op.output] + row * columns;
        for (int64_t i = 0; i < columns; i++) y[i] = x[i] * lanes[0];
    }
}

extern const Kernel sigmoid_gate = {num_tasks, run};

}  // namespace LLMC_NS
