// y = one half of x, activated, times the other.
// dim: 0 columns of y, 1 activation (activations.h), 2 the half that is activated (0 or 1).
#include "activations.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    const Activation kind = (Activation)op.dim[1];
    for (int64_t row = task * count; row < end; row++) {
        const float* x = step.buffers[op.input] + row * 2 * columns;
        const float* activated = x + op.dim[2] * columns;
        const float* other = x + (1 - op.dim[2]) * columns;
        float* y = step.buffers[op.output] + row * columns;
        int64_t i = 0;
        for (; i + W <= columns; i += W)
            store(y + i, activate(kind, load(activated + i)) * load(other + i));
        // A whole vector of one value: the tail rounds as the rest does.
        for (; i < columns; i++) y[i] = activate(kind, splat(activated[i]))[0] * other[i];
    }
}

extern const Kernel gated_activation = {num_tasks, run};

}  // namespace LLMC_NS
