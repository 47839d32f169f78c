// Queries and keys divided by the root of their mean square over all heads, values copied.
//
// input2: sums of squares [rows, 2] of queries and keys. dim: 0 heads, 1 kv_heads, 2 head_size, 3 heads
// and 4 kv_heads that were summed over. param: 0 epsilon. tensor: 0 q weight, 1 k weight (fp32).
#include <string.h>

#include "norms.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t columns_of(const LlmcOp& op) { return (op.dim[0] + 2 * op.dim[1]) * op.dim[2]; }

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(columns_of(op)));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = columns_of(op), count = stream_rows(columns), size = op.dim[2];
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    for (int64_t row = task * count; row < end; row++) {
        const float* x = step.buffers[op.input] + row * columns;
        const float* squares = step.buffers[op.input2] + row * 2;
        float* y = step.buffers[op.output] + row * columns;
        for (int part = 0; part < 2; part++) {
            const int64_t width = op.dim[part] * size;
            const float mean_square = squares[part] / (float)(op.dim[3 + part] * size);
            scale_row(x, width, mean_square, op.param[0],
                      static_cast<const float*>(op.tensor[part]), y);
            x += width;
            y += width;
        }
        memcpy(y, x, op.dim[1] * size * sizeof(float));
    }
}

extern const Kernel wide_qk_norm = {num_tasks, run};

}  // namespace LLMC_NS
