// Inputs of a quantized linear: y = round(x * factor / divisor * scale), per row.
//
// dim: 0 K, 1 format (below), 2 whether each row has a scale of its own. tensor: 0 factor, 1 divisor
// [K] (fp32; null if absent). param: 0 scale of all rows, 1 largest magnitude let in (0: any).
// output: [rows, K] numbers of the format and, if dim 2, behind them what each row is to be
// multiplied with, [rows].
//
// In e2m1 numbers of 16 neighbours are multiplied with their common e4m3 scale, which is exact;
// param 0 is the scale over all of them.
#include "rounding.h"
#include "rows.h"

namespace LLMC_NS {

enum Format { AS_IS = 0, INT8 = 1, E4M3 = 2, E2M1 = 3 };

constexpr int64_t E2M1_BLOCK = 16;
// Source: NVIDIA/TensorRT-LLM 0.17, minimal scale of FP8 per-token quantization.
constexpr float LOWEST_E4M3_SCALE = 1.0f / (448.0f * 512.0f);

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

static float largest_magnitude(const float* x, int64_t count) {
    float most = 0;
    for (int64_t k = 0; k < count; k++) {
        const float magnitude = magnitude_of(x[k]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static void round_blocks(float* y, int64_t columns, float whole) {
    for (int64_t k = 0; k < columns; k += E2M1_BLOCK) {
        const int64_t count = min64(E2M1_BLOCK, columns - k);
        const float block = round_e4m3(largest_magnitude(y + k, count) / (E2M1_MAX * whole));
        const float scale = block * whole;
        for (int64_t i = k; i < k + count; i++)
            y[i] = scale > 0 ? round_e2m1(y[i] / scale) * block : 0.0f;
    }
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const int64_t columns = op.dim[0], count = stream_rows(columns), rows = op_rows(op, step);
    const int64_t format = op.dim[1];
    const float* factor = static_cast<const float*>(op.tensor[0]);
    const float* divisor = static_cast<const float*>(op.tensor[1]);
    const float bound = op.param[1];
    for (int64_t row = task * count; row < min64(rows, (task + 1) * count); row++) {
        const float* x = step.buffers[op.input] + row * columns;
        float* y = step.buffers[op.output] + row * columns;
        for (int64_t k = 0; k < columns; k++) y[k] = factor ? x[k] * factor[k] : x[k];
        if (divisor)
            for (int64_t k = 0; k < columns; k++) y[k] /= divisor[k];
        if (bound > 0)
            for (int64_t k = 0; k < columns; k++) {
                const float low = y[k] < -bound ? -bound : y[k];
                y[k] = low > bound ? bound : low;
            }
        float scale = op.param[0];
        if (op.dim[2]) {
            const float most = largest_magnitude(y, columns);
            float step_size = format == INT8 ? most / 127.0f : most / E4M3_MAX;
            if (format == E4M3 && step_size < LOWEST_E4M3_SCALE) step_size = LOWEST_E4M3_SCALE;
            scale = step_size > 0 ? 1.0f / step_size : 0.0f;
            step.buffers[op.output][rows * columns + row] = step_size;
        }
        if (format == INT8)
            for (int64_t k = 0; k < columns; k++) y[k] = round_int8(y[k] * scale);
        if (format == E4M3)
            for (int64_t k = 0; k < columns; k++) y[k] = round_e4m3(y[k] * scale);
        if (format == E2M1) round_blocks(y, columns, scale);
    }
}

extern const Kernel round_rows = {num_tasks, run};

}  // namespace LLMC_NS
