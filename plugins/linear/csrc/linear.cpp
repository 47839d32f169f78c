// y[M, N] = x[M, K] * weight[N, K]^T, then per column scale and bias, activation, residual.
//
// dim: 0 K, 1 N (columns of y), 2 panels. tensor: 0 panels, 1 scale, 2 bias (fp32, padded to whole
// panels; null if absent). input2: residual [M, N] or -1.
// dim 3: inputs per group if weights share scales by group, whose values are tensor 3 (panel.h); 4:
// whether groups have zeros. FLAG_INTEGER_ROWS: x are integers from -128 to 127 and keep their values.
// FLAG_FLOAT_ROWS: x are multiplied as they are, beside int4 weights.
// FLAG_ROW_SCALES: behind x stands what each row is to be multiplied with.
// dim 5: activation of y (activations.h). FLAG_GATED: a panel holds 16 columns of the first half of y and
// the same 16 of the second; dim 6 says which half is activated, and y is their product.
//
// product.h multiplies; a row's result does not depend on the rows it is batched with.
#include "activations.h"
#include "plan.h"

namespace LLMC_NS {

static Plan make_plan(const LlmcOp& op, const Step& step) {
    Plan plan;
    plan.rows = op_rows(op, step);
    plan.row_blocks = ceil_div(plan.rows, most_rows(weight_of(op)));
    // A few tasks per thread: enough that one who was preempted does not hold up the others.
    int64_t groups = min64(op.dim[2], max64(1, ceil_div(step.threads * 6, max64(1, plan.row_blocks))));
    plan.panels_per_task = ceil_div(op.dim[2], groups);
    plan.groups = ceil_div(op.dim[2], plan.panels_per_task);
    return plan;
}

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    Plan plan = make_plan(op, step);
    return plan.row_blocks * plan.groups;
}

struct Output {
    const LlmcOp& op;
    const Step& step;
    int64_t first_row, rows;
};

// Finishes c[rows, 32] of one panel and writes it to y.
static void finish(const void* output, int64_t panel, float* c) {
    const auto& [op, step, first_row, rows] = *static_cast<const Output*>(output);
    const int64_t N = op.dim[1];
    const float* scale = static_cast<const float*>(op.tensor[1]);
    const float* bias = static_cast<const float*>(op.tensor[2]);
    const bool gated = op.flags & LLMC_FLAG_GATED;
    const Activation activation = (Activation)op.dim[5];
    const int64_t activated = op.dim[6] * PANEL / 2, other = PANEL / 2 - activated;
    const int64_t width = gated ? PANEL / 2 : PANEL, column = panel * width;
    const int64_t valid = min64(width, N - column);
    const float* row_scale = nullptr;
    if (op.flags & LLMC_FLAG_ROW_SCALES)
        row_scale = step.buffers[op.input] + op_rows(op, step) * op.dim[0] + first_row;
    for (int64_t r = 0; r < rows; r++, c += PANEL) {
        for (int v = 0; v < VECTORS; v++) {
            vf y = load(c + v * W);
            if (row_scale) y = y * row_scale[r];
            if (scale) y = y * load(scale + panel * PANEL + v * W);
            if (bias) y = y + load(bias + panel * PANEL + v * W);
            store(c + v * W, y);
        }
        if (gated) {
            for (int64_t i = 0; i < PANEL / 2; i += W)
                store(c + i, activate(activation, load(c + activated + i)) * load(c + other + i));
        } else if (activation) {
            for (int64_t i = 0; i < PANEL; i += W) store(c + i, activate(activation, load(c + i)));
        }
        float* y = step.buffers[op.output] + (first_row + r) * N + column;
        if (op.input2 >= 0) {
            const float* residual = step.buffers[op.input2] + (first_row + r) * N + column;
            for (int64_t i = 0; i < valid; i++) y[i] = c[i] + residual[i];
        } else {
            for (int64_t i = 0; i < valid; i++) y[i] = c[i];
        }
    }
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    const Part part(op, make_plan(op, step), task);
    const float* x = step.buffers[op.input] + part.first_row * op.dim[0];
    const bool pack = must_pack(op, scratch, part.block);
    const Output output = {op, step, part.first_row, part.rows};
    multiply_panels(weight_of(op), x, part.rows, part.first_panel, part.last_panel, pack,
                    scratch.memory, PanelSink{finish, &output});
}

extern const Kernel linear = {num_tasks, run};

}  // namespace LLMC_NS
