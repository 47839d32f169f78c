// last[i] = hidden[logits_rows[i]]. dim: 0 columns.
#include <string.h>

#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(step.batch->num_logits, stream_rows(op.dim[0]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns);
    const int64_t end = min64(step.batch->num_logits, (task + 1) * count);
    for (int64_t i = task * count; i < end; i++)
        memcpy(step.buffers[op.output] + i * columns,
               step.buffers[op.input] + step.batch->logits_rows[i] * columns,
               columns * sizeof(float));
}

extern const Kernel gather_last = {num_tasks, run};

}  // namespace LLMC_NS
