// Sorts (token, choice) pairs by expert (assignments.h). input: routing [T, 2k].
// dim: 0 k, 1 the rank's first expert, 2 how many it has.
#include "assignments.h"
#include "rows.h"

namespace LLMC_NS {

static int64_t num_tasks(const LlmcOp& op, const Step& step) { return op_rows(op, step) > 0; }

static void run(const LlmcOp& op, const Step& step, int64_t, Scratch& scratch) {
    const int64_t tokens = op_rows(op, step), k = op.dim[0], experts = op.dim[2];
    const float* routing = step.buffers[op.input];
    const Assignments out(step.buffers[op.output], tokens, k);
    int32_t* next = reinterpret_cast<int32_t*>(scratch.memory);  // per expert: how many, then where
    auto expert_of = [&](int64_t token, int64_t choice) {
        return (int64_t)routing[token * 2 * k + choice] - op.dim[1];
    };
    for (int64_t e = 0; e < experts; e++) next[e] = 0;
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t choice = 0; choice < k; choice++) {
            const int64_t expert = expert_of(token, choice);
            if (expert >= 0 && expert < experts) next[expert]++;
        }
    int32_t active = 0, end = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (!next[e]) continue;
        out.expert(active) = (int32_t)e;
        out.start(active++) = end;
        end += next[e];
        next[e] = end - next[e];
    }
    out.num_active() = active;
    out.start(active) = end;
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t choice = 0; choice < k; choice++) {
            const int64_t expert = expert_of(token, choice);
            if (expert >= 0 && expert < experts)
                out.pairs()[next[expert]++] = (int32_t)(token * k + choice);
        }
}

extern const Kernel moe_group = {num_tasks, run};

}  // namespace LLMC_NS
