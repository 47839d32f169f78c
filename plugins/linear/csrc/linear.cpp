// y[M, N] = x[M, K] * weight[N, K]^T, then per column scale and bias, SwiGLU, residual.
//
// dim: 0 K, 1 N (columns of y), 2 panels. tensor: 0 panels, 1 scale, 2 bias (fp32, padded to whole
// panels; null if absent). input2: residual [M, N] or -1.
// FLAG_GATED: a panel holds 16 activated columns, then the 16 columns they gate.
//
// Every y is one chain of fma over k = 0..K-1 whatever M is, so a row's result does not depend on
// the rows it is batched with. With AMX the order is the tile unit's, equally one per row.
#include "linear.h"

namespace LLMC_NS {

static Plan make_plan(const LlmcOp& op, const Step& step) {
    Plan plan;
    plan.rows = op_rows(op, step);
    int64_t most = op.dim[0] < 1 ? 1 : ROW_BLOCK_FLOATS / op.dim[0];
    most = max64(TILE_ROWS, min64(most, MAX_ROW_BLOCK));
    plan.row_blocks = ceil_div(plan.rows, most);
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
    for (int64_t r = 0; r < rows; r++, c += PANEL) {
        for (int v = 0; v < VECTORS; v++) {
            vf y = load(c + v * W);
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

// Copies x[rows, K] to blocks [K][rows of the block], so that the inner loop reads one stream.
static void pack_rows(const float* x, int64_t rows, int64_t K, float* packed) {
    int64_t blocks = ceil_div(rows, TILE_ROWS);
    for (int64_t i = 0; i < blocks; i++) {
        int64_t begin = block_start(rows, blocks, i), count = block_start(rows, blocks, i + 1) - begin;
        const float* from = x + begin * K;
        float* to = packed + begin * K;
        for (int64_t r = 0; r < count; r++)
            for (int64_t k = 0; k < K; k++) to[k * count + r] = from[r * K + k];
    }
}

template <int TYPE>
static void multiply_many(int64_t rows, const float* packed, int64_t K, const char* panel,
                          float* unpacked, float* c) {
    int64_t blocks = ceil_div(rows, TILE_ROWS);
    const int64_t row_bytes = PANEL * type_bytes(TYPE);
    for (int64_t k = 0; k < K; k += K_CHUNK) {
        int64_t count = min64(K_CHUNK, K - k);
        const float* b = unpacked;
        if (TYPE == LLMC_F32) b = reinterpret_cast<const float*>(panel) + k * PANEL;
        else unpack<TYPE>(panel, k, (count + 1) / 2 * 2, unpacked);
        // While this chunk is multiplied the next one is brought closer, a few lines per block.
        const char* next = panel + (k + count) * row_bytes;
        int64_t lines = ceil_div(K_CHUNK * row_bytes / 64, blocks * VECTORS / 2);
        for (int v = 0; v < VECTORS; v += 2) {
            for (int64_t i = 0; i < blocks; i++) {
                int64_t begin = block_start(rows, blocks, i);
                int64_t tile = block_start(rows, blocks, i + 1) - begin;
                for (int64_t line = 0; line < lines; line++, next += 64) __builtin_prefetch(next, 0, 2);
                multiply_rows(tile, packed + begin * K + k * tile, 1, tile, b + v * W, count,
                              c + begin * PANEL + v * W, k == 0);
            }
        }
    }
}

template <int TYPE>
static void run_typed(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    const Plan plan = make_plan(op, step);
    const int64_t K = op.dim[0], block = task / plan.groups, group = task % plan.groups;
    const int64_t begin = block_start(plan.rows, plan.row_blocks, block);
    const int64_t rows = block_start(plan.rows, plan.row_blocks, block + 1) - begin;
    const int64_t panel_bytes = pad32(K) * PANEL * type_bytes(TYPE);
    const float* x = step.buffers[op.input] + begin * K;
    const int64_t last = min64(op.dim[2], (group + 1) * plan.panels_per_task);
    float* c = scratch.memory;
    float* unpacked = c + MAX_ROW_BLOCK * PANEL;
    float* packed = unpacked + K_CHUNK * PANEL;
    const bool few = plan.rows <= FEW_ROWS;
    if (!few && (scratch.packed_op != &op || scratch.packed_block != block)) {
        pack_rows(x, rows, K, packed);
        scratch.packed_op = &op;
        scratch.packed_block = block;
    }
    for (int64_t panel = group * plan.panels_per_task; panel < last; panel++) {
        const char* weight = static_cast<const char*>(op.tensor[0]) + panel * panel_bytes;
        if (few) multiply_few<TYPE>(rows, x, K, weight, K, c, true);
        else multiply_many<TYPE>(rows, packed, K, weight, unpacked, c);
        finish(op, step, begin, rows, panel, c);
    }
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    switch (op.type) {
        case LLMC_F32: return run_typed<LLMC_F32>(op, step, task, scratch);
        case LLMC_F16: return run_typed<LLMC_F16>(op, step, task, scratch);
        case LLMC_BF16: return run_typed<LLMC_BF16>(op, step, task, scratch);
        case LLMC_I8: return run_typed<LLMC_I8>(op, step, task, scratch);
    }
}

extern const Kernel linear = {num_tasks, run};

}  // namespace LLMC_NS
