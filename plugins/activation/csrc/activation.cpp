// y = act(x), element by element. dim: 0 columns, 1 activation (activations.h).
#include "activations.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t rows = stream_rows(op.dim[0]), begin = task * rows * op.dim[0];
    const int64_t end = min64(op_rows(op, step), (task + 1) * rows) * op.dim[0];
    const float* x = step.buffers[op.input];
    float* y = step.buffers[op.output];
    const Activation kind = (Activation)op.dim[1];
    int64_t i = begin;
    for (; i + W <= end; i += W) store(y + i, activate(kind, load(x + i)));
    for (; i < end; i++) y[i] = activate(kind, splat(x[i]))[0];
}

extern const Kernel activation = {num_tasks, run};

}  // namespace LLMC_NS
