// Rows [q heads | k heads | v heads] of one size, as attention takes them, of multi-head latent attention.
//
// A head of q or k is [rotating columns | the others], one of v its columns and zeros.
// dim: 0 heads, 1 columns of q and k that do not rotate, 2 those that do, 3 columns of v, 4 what is
// written: 0, k and v, to output; input is [heads * dim 1 | heads * dim 3] and input2 the rotating
// columns, which all heads share. 1, q, to input2, which is the output of the other; input is
// [heads][dim 1 + dim 2].
#include <string.h>

#include "rows.h"

namespace LLMC_NS {

static int64_t task_rows(const LlmcOp& op) {
    return stream_rows(op.dim[0] * 3 * (op.dim[1] + op.dim[2]));
}

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), task_rows(op));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t heads = op.dim[0], still = op.dim[1], moving = op.dim[2], value = op.dim[3];
    const int64_t size = still + moving, rows = task_rows(op);
    const int64_t end = min64(op_rows(op, step), (task + 1) * rows);
    for (int64_t row = task * rows; row < end; row++) {
        if (op.dim[4]) {
            const float* q = step.buffers[op.input] + row * heads * size;
            float* to = step.buffers[op.input2] + row * 3 * heads * size;
            for (int64_t head = 0; head < heads; head++, q += size, to += size) {
                memcpy(to, q + still, moving * 4);
                memcpy(to + moving, q, still * 4);
            }
            continue;
        }
        const float* k = step.buffers[op.input] + row * heads * (still + value);
        const float* v = k + heads * still;
        const float* shared = step.buffers[op.input2] + row * moving;
        float* to_k = step.buffers[op.output] + row * 3 * heads * size + heads * size;
        float* to_v = to_k + heads * size;
        for (int64_t head = 0; head < heads; head++, to_k += size, to_v += size) {
            memcpy(to_k, shared, moving * 4);
            memcpy(to_k + moving, k + head * still, still * 4);
            memcpy(to_v, v + head * value, value * 4);
            memset(to_v + value, 0, (size - value) * 4);
        }
    }
}

extern const Kernel mla_qkv = {num_tasks, run};

}  // namespace LLMC_NS
