// Per row of qkv: the sum of squares of the query columns, then of the key columns.
// dim: 0 heads, 1 kv_heads, 2 head_size.
#include "norms.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t columns_of(const LlmcOp& op) { return (op.dim[0] + 2 * op.dim[1]) * op.dim[2]; }

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(columns_of(op)));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = columns_of(op), count = stream_rows(columns);
    const int64_t queries = op.dim[0] * op.dim[2], keys = op.dim[1] * op.dim[2];
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    for (int64_t row = task * count; row < end; row++) {
        const float* x = step.buffers[op.input] + row * columns;
        float* y = step.buffers[op.output] + row * 2;
        y[0] = sum_of_squares(x, queries, 0);
        y[1] = sum_of_squares(x + queries, keys, 0);
    }
}

extern const Kernel qk_squares = {num_tasks, run};

}  // namespace LLMC_NS
