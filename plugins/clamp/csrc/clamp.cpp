// y = x within plus and minus the limit. dim: 0 columns. param: 0 limit.
#include "rows.h"
#include "simd.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step) * op.dim[0], STREAM_FLOATS);
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t end = min64(op_rows(op, step) * op.dim[0], (task + 1) * STREAM_FLOATS);
    const float* x = step.buffers[op.input];
    float* y = step.buffers[op.output];
    const float limit = op.param[0];
    for (int64_t i = task * STREAM_FLOATS; i < end; i++) {
        const float low = x[i] < -limit ? -limit : x[i];
        y[i] = low > limit ? limit : low;
    }
}

extern const Kernel clamp = {num_tasks, run};

}  // namespace LLMC_NS
