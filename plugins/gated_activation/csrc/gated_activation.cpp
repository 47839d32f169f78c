// y = silu(x[:, :columns]) * x[:, columns:]. dim: 0 columns of y.
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
        const float* x = step.buffers[op.input] + row * 2 * columns;
        float* y = step.buffers[op.output] + row * columns;
        int64_t i = 0;
        for (; i + W <= columns; i += W) store(y + i, silu(load(x + i)) * load(x + columns + i));
        for (; i < columns; i++) {  // a whole vector of one value: the tail rounds as the rest does
            float lanes[W];
            store(lanes, silu(splat(x[i])));
            y[i] = lanes[0] * x[columns + i];
        }
    }
}

extern const Kernel gated_activation = {num_tasks, run};

}  // namespace LLMC_NS
