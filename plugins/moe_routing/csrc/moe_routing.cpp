// Which experts a token goes to, and with which weights: routing[T] = k expert numbers, then k weights.
//
// input: logits [T, E]. dim: 0 E, 1 k, 2 groups of neighbouring experts, 3 groups a token may use,
// 4 scores (0 softmax, 1 sigmoid), 5 score of a group (0 its largest, 1 the sum of its two largest),
// 6 whether the k weights are divided by their sum. param: 0 what weights are multiplied with, 1 what
// is added to their sum. tensor: 0 what is added to scores when experts are chosen, [E] (null: 0).
//
// Experts come by falling score; of equal ones the lower number first.
#include "rows.h"
#include "simd.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return ceil_div(op_rows(op, step), stream_rows(op.dim[0]));
}

// e^x of a single number, rounded as the vectors are.
static float exp_of(float x) {
    float lanes[W];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

static void find_scores(const float* logits, int64_t count, bool sigmoids, float* scores) {
    if (sigmoids) {
        for (int64_t e = 0; e < count; e++) scores[e] = 1.0f / (1.0f + exp_of(-logits[e]));
        return;
    }
    float most = logits[0], sum = 0;
    for (int64_t e = 1; e < count; e++) most = logits[e] > most ? logits[e] : most;
    for (int64_t e = 0; e < count; e++) sum += scores[e] = exp_of(logits[e] - most);
    for (int64_t e = 0; e < count; e++) scores[e] /= sum;
}

static int64_t largest_of(const float* values, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

// Sets the choices of all but the best `kept` of `groups` to -infinity.
static void keep_groups(float* choices, int64_t count, int64_t groups, int64_t kept, bool two,
                        float* of_group) {
    const int64_t size = count / groups;
    for (int64_t g = 0; g < groups; g++) {
        float* mine = choices + g * size;
        const int64_t best = largest_of(mine, size);
        of_group[g] = mine[best];
        if (two && size > 1) {
            const float first = mine[best];
            mine[best] = -__builtin_inff();
            of_group[g] += mine[largest_of(mine, size)];
            mine[best] = first;
        }
    }
    for (int64_t i = 0; i < groups; i++) {
        const int64_t best = largest_of(of_group, groups);
        of_group[best] = -__builtin_inff();
        for (int64_t e = 0; e < size && i >= kept; e++)
            choices[best * size + e] = -__builtin_inff();
    }
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    const int64_t count = op.dim[0], k = op.dim[1], groups = op.dim[2];
    const float* correction = static_cast<const float*>(op.tensor[0]);
    float *scores = scratch.memory, *choices = scores + count, *of_group = choices + count;
    const int64_t rows = stream_rows(count), end = min64(op_rows(op, step), (task + 1) * rows);
    for (int64_t row = task * rows; row < end; row++) {
        float* routing = step.buffers[op.output] + row * 2 * k;
        find_scores(step.buffers[op.input] + row * count, count, op.dim[4] == 1, scores);
        for (int64_t e = 0; e < count; e++)
            choices[e] = correction ? scores[e] + correction[e] : scores[e];
        if (op.dim[3] < groups)
            keep_groups(choices, count, groups, op.dim[3], op.dim[5] == 1, of_group);
        float sum = 0;
        for (int64_t i = 0; i < k; i++) {
            const int64_t best = largest_of(choices, count);
            choices[best] = -__builtin_inff();
            routing[i] = (float)best;
            sum += routing[k + i] = scores[best];
        }
        const float divisor = op.dim[6] ? sum + op.param[1] : 1.0f;
        for (int64_t i = 0; i < k; i++) routing[k + i] = routing[k + i] / divisor * op.param[0];
    }
}

extern const Kernel moe_routing = {num_tasks, run};

}  // namespace LLMC_NS
