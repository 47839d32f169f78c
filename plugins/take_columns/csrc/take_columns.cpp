// y = of each of dim 0 groups of dim 1 columns, dim 3 columns from the dim 2nd on.
#include <string.h>

#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0] * op.dim[1]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t groups = op.dim[0], width = op.dim[1], count = op.dim[3];
    const int64_t rows = stream_rows(groups * width);
    const int64_t end = min64(op_rows(op, step), (task + 1) * rows);
    for (int64_t i = task * rows * groups; i < end * groups; i++)
        memcpy(step.buffers[op.output] + i * count,
               step.buffers[op.input] + i * width + op.dim[2], count * 4);
}

extern const Kernel take_columns = {num_tasks, run};

}  // namespace LLMC_NS
