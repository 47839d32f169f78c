// y[M, N] = x[M, K] * weight[N, K]^T, then per column scale and bias, SwiGLU, residual.
//
// dim: 0 K, 1 N (columns of y), 2 panels. tensor: 0 panels, 1 scale, 2 bias (fp32, padded to whole
// panels; null if absent). input2: residual [M, N] or -1.
// dim 3: inputs per group if weights share scales by group, whose values are tensor 3 (panel.h); 4:
// whether groups have zeros. FLAG_INTEGER_ROWS: x are integers from -128 to 127 and keep their values.
// FLAG_FLOAT_ROWS: x are multiplied as they are, beside int4 weights.
// FLAG_ROW_SCALES: behind x stands what each row is to be multiplied with.
// FLAG_GATED: a panel holds 16 activated columns, then the 16 columns they gate.
//
// float_rows.h multiplies float weights, fixed_point.h int8 and int4 weights, and with AMX tile_rows.h takes
// bf16, int8 and e4m3. Each sums over k = 0..K-1 in one order whatever M is, so a row's result does not
// depend on the rows it is batched with.
#include "fixed_point.h"
#include "float_rows.h"
#include "tile_rows.h"

namespace LLMC_NS {

// Whether rows are multiplied as 16-bit integers.
static bool is_fixed(const LlmcOp& op) {
    return (op.type == LLMC_I8 || op.type == LLMC_I4) && !(op.flags & LLMC_FLAG_FLOAT_ROWS);
}

static Plan make_plan(const LlmcOp& op, const Step& step) {
    Plan plan;
    plan.rows = op_rows(op, step);
    const int64_t most = ROW_BLOCK_BYTES / (op.dim[0] * (is_fixed(op) ? 2 : 4));
    plan.row_blocks = ceil_div(plan.rows, max64(TILE_ROWS, min64(most, MAX_ROW_BLOCK)));
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

// Finishes c[rows, 32] of one panel and writes it to y.
static void finish(const LlmcOp& op, const Step& step, int64_t first_row, int64_t rows,
                   int64_t panel, float* c) {
    const int64_t N = op.dim[1];
    const float* scale = static_cast<const float*>(op.tensor[1]);
    const float* bias = static_cast<const float*>(op.tensor[2]);
    const bool gated = op.flags & LLMC_FLAG_GATED;
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
        if (gated)
            for (int v = 0; v < VECTORS / 2; v++)
                store(c + v * W, silu(load(c + v * W)) * load(c + PANEL / 2 + v * W));
        float* y = step.buffers[op.output] + (first_row + r) * N + column;
        if (op.input2 >= 0) {
            const float* residual = step.buffers[op.input2] + (first_row + r) * N + column;
            for (int64_t i = 0; i < valid; i++) y[i] = c[i] + residual[i];
        } else {
            for (int64_t i = 0; i < valid; i++) y[i] = c[i];
        }
    }
}

static Groups groups_of(const LlmcOp& op, int64_t panel) {
    if (!op.tensor[3]) return Groups{};
    const int64_t floats = op.dim[0] / op.dim[3] * PANEL * (op.dim[4] ? 2 : 1);
    return {static_cast<const float*>(op.tensor[3]) + panel * floats, op.dim[3], op.dim[4] != 0};
}

template <int TYPE>
static void run_floats(const LlmcOp& op, const Step& step, const Part& part, Scratch& scratch) {
    const int64_t K = op.dim[0], bytes = panel_bytes(TYPE, pad32(K));
    const Workspace space(scratch.memory);
    const float* x = step.buffers[op.input] + part.first_row * K;
    const bool few = part.rows <= FEW_ROWS && !op.tensor[3];
    if (!few && part.must_pack(op, scratch)) pack_floats(x, part.rows, K, space.packed);
    for (int64_t panel = part.first_panel; panel < part.last_panel; panel++) {
        const char* weight = static_cast<const char*>(op.tensor[0]) + panel * bytes;
        if (few) multiply_few<TYPE>(part.rows, x, K, weight, K, space.c, true);
        else multiply_floats<TYPE>(part.rows, space.packed, K, weight, groups_of(op, panel),
                                   space.unpacked, space.c);
        finish(op, step, part.first_row, part.rows, panel, space.c);
    }
}

template <int TYPE>
static void run_fixed(const LlmcOp& op, const Step& step, const Part& part, Scratch& scratch) {
    const int64_t K = op.dim[0], bytes = panel_bytes(TYPE, pad32(K));
    const Workspace space(scratch.memory);
    const FixedRows rows(space.packed, part.rows, K, groups_of(op, 0));
    if (part.must_pack(op, scratch))
        pack_fixed(step.buffers[op.input] + part.first_row * K, part.rows, K,
                   op.flags & LLMC_FLAG_INTEGER_ROWS, op.dim[4] != 0, rows);
    for (int64_t panel = part.first_panel; panel < part.last_panel; panel++) {
        const char* weight = static_cast<const char*>(op.tensor[0]) + panel * bytes;
        multiply_fixed<TYPE>(part.rows, rows, K, weight, groups_of(op, panel), space.unpacked,
                             space.c);
        finish(op, step, part.first_row, part.rows, panel, space.c);
    }
}

#if LLMC_AMX
template <int TYPE>
static void run_tiles(const LlmcOp& op, const Step& step, const Part& part, Scratch& scratch) {
    const int64_t K = op.dim[0], bytes = panel_bytes(TYPE, pad32(K));
    const Workspace space(scratch.memory);
    uint16_t* rows = reinterpret_cast<uint16_t*>(space.packed);
    if (part.must_pack(op, scratch))
        pack_tiles(step.buffers[op.input] + part.first_row * K, part.rows, K, rows);
    for (int64_t panel = part.first_panel; panel < part.last_panel; panel++) {
        const char* weight = static_cast<const char*>(op.tensor[0]) + panel * bytes;
        multiply_tiles<TYPE>(part.rows, rows, K, weight, space.unpacked, space.c);
        finish(op, step, part.first_row, part.rows, panel, space.c);
    }
}
#endif

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    const Part part(op, make_plan(op, step), task);
#if LLMC_AMX
    if (op.type == LLMC_BF16) return run_tiles<LLMC_BF16>(op, step, part, scratch);
    if (op.type == LLMC_I8) return run_tiles<LLMC_I8>(op, step, part, scratch);
    if (op.type == LLMC_F8) return run_tiles<LLMC_F8>(op, step, part, scratch);
#endif
    switch (op.type) {
        case LLMC_F32: return run_floats<LLMC_F32>(op, step, part, scratch);
        case LLMC_F16: return run_floats<LLMC_F16>(op, step, part, scratch);
        case LLMC_BF16: return run_floats<LLMC_BF16>(op, step, part, scratch);
        case LLMC_F8: return run_floats<LLMC_F8>(op, step, part, scratch);
        case LLMC_I4:
            return is_fixed(op) ? run_fixed<LLMC_I4>(op, step, part, scratch)
                                : run_floats<LLMC_I4>(op, step, part, scratch);
        case LLMC_F4: return run_floats<LLMC_F4>(op, step, part, scratch);
        case LLMC_I8: return run_fixed<LLMC_I8>(op, step, part, scratch);
    }
}

extern const Kernel linear = {num_tasks, run};

}  // namespace LLMC_NS
