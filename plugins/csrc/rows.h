// How many rows an op works on.
#pragma once
#include "kernel.h"

constexpr int32_t LLMC_FLAG_LOGITS_ROWS = 1;  // the op's rows are the L gathered ones, not the T tokens

static inline int64_t op_rows(const LlmcOp& op, const Step& step) {
    return op.flags & LLMC_FLAG_LOGITS_ROWS ? step.batch->num_logits : step.batch->num_tokens;
}

// Tasks of about this many floats each for ops that only stream over rows.
constexpr int64_t STREAM_FLOATS = 8192;
static inline int64_t stream_rows(int64_t columns) { return max64(1, STREAM_FLOATS / columns); }
