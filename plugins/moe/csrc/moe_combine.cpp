// y[T, N] = the sum over a token's choices, in order, of weight * row of the second product.
//
// input: [T, k * N], row token * k + choice; input2: routing [T, 2k]. dim: 0 N, 1 k, 2 the rank's first
// expert, 3 how many it has. Choices of other ranks' experts are left out; peers add theirs.
#include "rows.h"
#include "simd.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0] * op.dim[1]));
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t N = op.dim[0], k = op.dim[1], rows = stream_rows(N * k);
    const int64_t end = min64(op_rows(op, step), (task + 1) * rows);
    for (int64_t token = task * rows; token < end; token++) {
        const float* routing = step.buffers[op.input2] + token * 2 * k;
        const float* x = step.buffers[op.input] + token * k * N;
        float* y = step.buffers[op.output] + token * N;
        memset(y, 0, N * 4);
        for (int64_t choice = 0; choice < k; choice++, x += N) {
            const int64_t expert = (int64_t)routing[choice] - op.dim[2];
            if (expert < 0 || expert >= op.dim[3]) continue;
            const float weight = routing[k + choice];
            int64_t i = 0;
            for (; i + W <= N; i += W) store(y + i, fma(splat(weight), load(x + i), load(y + i)));
            if (i == N) continue;
            float lanes[3][W] = {};  // a whole vector: the tail rounds as the rest does
            memcpy(lanes[0], x + i, (N - i) * 4);
            memcpy(lanes[1], y + i, (N - i) * 4);
            store(lanes[2], fma(splat(weight), load(lanes[0]), load(lanes[1])));
            memcpy(y + i, lanes[2], (N - i) * 4);
        }
    }
}

extern const Kernel moe_combine = {num_tasks, run};

}  // namespace LLMC_NS
