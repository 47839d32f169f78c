// out = a + scale * b. dim: 0 columns. param: 0 scale.
#include "rows.h"
#include "simd.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t rows = stream_rows(op.dim[0]);
    const int64_t begin = task * rows * op.dim[0];
    const int64_t end = min64(op_rows(op, step), (task + 1) * rows) * op.dim[0];
    const float* a = step.buffers[op.input];
    const float* b = step.buffers[op.input2];
    float* out = step.buffers[op.output];
    for (int64_t i = begin; i < end; i++) out[i] = a[i] + b[i] * op.param[0];
}

extern const Kernel add = {num_tasks, run};

}  // namespace LLMC_NS
