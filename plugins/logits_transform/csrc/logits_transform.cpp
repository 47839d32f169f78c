// y = scale * x, then cap * tanh(y / cap). dim: 0 columns. param: 0 scale, 1 cap (0: none).
#include "activations.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step) * op.dim[0], STREAM_FLOATS);
}

static vf transform(vf x, float scale, float cap) {
    return cap > 0 ? soft_cap(x * scale, cap) : x * scale;
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t end = min64(op_rows(op, step) * op.dim[0], (task + 1) * STREAM_FLOATS);
    const float* x = step.buffers[op.input];
    float* y = step.buffers[op.output];
    int64_t i = task * STREAM_FLOATS;
    for (; i + W <= end; i += W) store(y + i, transform(load(x + i), op.param[0], op.param[1]));
    for (; i < end; i++) y[i] = transform(splat(x[i]), op.param[0], op.param[1])[0];
}

extern const Kernel logits_transform = {num_tasks, run};

}  // namespace LLMC_NS
