// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, per row.
// dim: 0 columns. param: 0 epsilon. tensor: 0 weight, 1 bias (fp32; null if absent).
#include "norms.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    const float* weight = static_cast<const float*>(op.tensor[0]);
    const float* bias = static_cast<const float*>(op.tensor[1]);
    for (int64_t row = task * count; row < end; row++)
        normalize_layer(step.buffers[op.input] + row * columns, columns, op.param[0], weight, bias,
                        step.buffers[op.output] + row * columns);
}

extern const Kernel layer_norm = {num_tasks, run};

}  // namespace LLMC_NS
