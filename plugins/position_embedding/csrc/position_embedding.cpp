// out[t] = hidden[t] + table[positions[t]].
// dim: 0 columns. tensor: 0 table, row by row, of `type`.
#include "rows.h"
#include "table_row.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(step.batch->num_tokens, stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(step.batch->num_tokens, (task + 1) * count);
    for (int64_t t = task * count; t < end; t++)
        add_row(op.type, op.tensor[0], step.batch->positions[t] * columns, columns,
                step.buffers[op.input] + t * columns, step.buffers[op.output] + t * columns);
}

extern const Kernel position_embedding = {num_tasks, run};

}  // namespace LLMC_NS
