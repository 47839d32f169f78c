// hidden[t] = table[token_ids[t] - vocab_start] * scale, zeros outside the table.
// dim: 0 columns, 1 vocab_start, 2 rows of the table. param: 0 scale. tensor: 0 table, row by row, of
// `type`.
#include "rows.h"
#include "table_row.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(step.batch->num_tokens, stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(step.batch->num_tokens, (task + 1) * count);
    for (int64_t t = task * count; t < end; t++) {
        const int64_t row = step.batch->token_ids[t] - op.dim[1];
        float* y = step.buffers[op.output] + t * columns;
        if (row < 0 || row >= op.dim[2]) memset(y, 0, columns * sizeof(float));
        else read_row(op.type, op.tensor[0], row * columns, columns, op.param[0], y);
    }
}

extern const Kernel embedding = {num_tasks, run};

}  // namespace LLMC_NS
