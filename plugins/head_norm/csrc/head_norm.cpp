// Query and key heads normalized over their columns, values copied.
//
// dim: 0 heads, 1 kv_heads, 2 head_size, 3 kind (0 root mean square, 1 mean and variance), 4 whether
// each head has its own weights. param: 0 epsilon. tensor: 0 q weight, 1 k weight (fp32).
#include <string.h>

#include "norms.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t columns_of(const LlmcOp& op) { return (op.dim[0] + 2 * op.dim[1]) * op.dim[2]; }

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(columns_of(op)));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t heads = op.dim[0], kv_heads = op.dim[1], size = op.dim[2];
    const int64_t columns = columns_of(op), count = stream_rows(columns);
    const int64_t end = min64(op_rows(op, step), (task + 1) * count);
    for (int64_t row = task * count; row < end; row++) {
        const float* x = step.buffers[op.input] + row * columns;
        float* y = step.buffers[op.output] + row * columns;
        for (int64_t head = 0; head < heads + kv_heads; head++, x += size, y += size) {
            const bool is_key = head >= heads;
            const float* weight = static_cast<const float*>(op.tensor[is_key]);
            if (op.dim[4]) weight += (is_key ? head - heads : head) * size;
            if (op.dim[3]) normalize_layer(x, size, op.param[0], weight, nullptr, y);
            else scale_row(x, size, sum_of_squares(x, size, 0) / (float)size, op.param[0], weight, y);
        }
        memcpy(y, x, kv_heads * size * sizeof(float));
    }
}

extern const Kernel head_norm = {num_tasks, run};

}  // namespace LLMC_NS
