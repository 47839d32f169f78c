// One of the two products of the experts: each active expert's weight times the rows that go to it.
//
// input2: assignments (assignments.h). dim, tensor and flags: those of linear, dim 2 the panels of one
// expert and the tensors those of all experts, one after the other. dim 5: k; 6: 0 for the first
// product, which takes x[token] and leaves row i of the sorted pairs in output row i, 1 for the second,
// which takes those and leaves row token * k + choice; 7: what gates (Gate). param: 0 alpha, 1 limit.
// FLAG_GATED as in linear.
#include "../../linear/csrc/plan.h"
#include "assignments.h"
#include "gates.h"

namespace LLMC_NS {

static Assignments assignments_of(const LlmcOp& op, const Step& step) {
    return Assignments(step.buffers[op.input2], op_rows(op, step), op.dim[5]);
}

struct ExpertPlan {
    int64_t row_blocks, groups, panels_per_task;
};

static int64_t blocks_of(const LlmcOp& op, const Assignments& pairs, int64_t i) {
    return ceil_div(pairs.count(i), most_rows(weight_of(op)));
}

static ExpertPlan make_plan(const LlmcOp& op, const Step& step, const Assignments& pairs) {
    ExpertPlan plan = {0, 0, 0};
    for (int64_t i = 0; i < pairs.num_active(); i++) plan.row_blocks += blocks_of(op, pairs, i);
    const int64_t wanted = ceil_div(step.threads * 6, max64(1, plan.row_blocks));
    plan.panels_per_task = ceil_div(op.dim[2], min64(op.dim[2], wanted));
    plan.groups = ceil_div(op.dim[2], plan.panels_per_task);
    return plan;
}

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    if (op_rows(op, step) == 0) return 0;
    const ExpertPlan plan = make_plan(op, step, assignments_of(op, step));
    return plan.row_blocks * plan.groups;
}

struct ExpertRows {
    const LlmcOp& op;
    float* y;
    const int32_t* pairs;  // of the rows
    int64_t first_row, rows, expert;

    int64_t output_row(int64_t r) const { return op.dim[6] ? pairs[r] : first_row + r; }
};

static void finish(const void* self, int64_t panel, float* c) {
    const ExpertRows& mine = *static_cast<const ExpertRows*>(self);
    const LlmcOp& op = mine.op;
    const bool gated = op.flags & LLMC_FLAG_GATED;
    const int64_t width = gated ? PANEL / 2 : PANEL, column = panel * width, N = op.dim[1];
    const int64_t place = (mine.expert * op.dim[2] + panel) * PANEL;
    const float* scale = static_cast<const float*>(op.tensor[1]);
    const float* bias = static_cast<const float*>(op.tensor[2]);
    for (int64_t r = 0; r < mine.rows; r++, c += PANEL) {
        for (int v = 0; v < VECTORS; v++) {
            vf y = load(c + v * W);
            if (scale) y = y * load(scale + place + v * W);
            if (bias) y = y + load(bias + place + v * W);
            store(c + v * W, y);
        }
        if (gated)
            for (int v = 0; v < VECTORS / 2; v++)
                store(c + v * W, gate(op, load(c + v * W), load(c + PANEL / 2 + v * W)));
        memcpy(mine.y + mine.output_row(r) * N + column, c, min64(width, N - column) * 4);
    }
}

// Copies the tokens of `pairs` to lie one after the other.
static void gather(const float* x, const int32_t* pairs, int64_t rows, int64_t k, int64_t K,
                   float* out) {
    for (int64_t r = 0; r < rows; r++) memcpy(out + r * K, x + pairs[r] / k * K, K * 4);
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    const Assignments all = assignments_of(op, step);
    const ExpertPlan plan = make_plan(op, step, all);
    int64_t i = 0, block = task / plan.groups;
    for (; block >= blocks_of(op, all, i); i++) block -= blocks_of(op, all, i);

    const int64_t blocks = blocks_of(op, all, i), K = op.dim[0];
    const int64_t begin = block_start(all.count(i), blocks, block);
    const int64_t rows = block_start(all.count(i), blocks, block + 1) - begin;
    const int64_t first_row = all.start(i) + begin, expert = all.expert(i);
    const int32_t* pairs = all.pairs() + first_row;

    const bool pack = must_pack(op, scratch, task / plan.groups);
    // Products use less than half of a thread's memory: most_rows() and MAX_IN_FEATURES see to it.
    float* gathered = scratch.memory + SCRATCH_FLOATS / 2;
    const float* x = step.buffers[op.input];
    if (op.dim[6]) x += first_row * K;
    else {
        if (pack) gather(x, pairs, rows, op.dim[5], K, gathered);
        x = gathered;
    }
    PackedWeight weight = weight_of(op);
    weight.panels += expert * op.dim[2] * weight.bytes_per_panel();
    weight.groups = weight.groups_of(expert * op.dim[2]).values;
    const ExpertRows mine = {op, step.buffers[op.output], pairs, first_row, rows, expert};
    const int64_t first = task % plan.groups * plan.panels_per_task;
    multiply_panels(weight, x, rows, first, min64(op.dim[2], first + plan.panels_per_task), pack,
                    scratch.memory, PanelSink{finish, &mine});
}

extern const Kernel moe_linear = {num_tasks, run};

}  // namespace LLMC_NS
