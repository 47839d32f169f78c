// How linear cuts its work.
#pragma once
#include "product.h"
#include "rows.h"

namespace LLMC_NS {

constexpr int32_t LLMC_FLAG_GATED = 2;
constexpr int32_t LLMC_FLAG_INTEGER_ROWS = 4;
constexpr int32_t LLMC_FLAG_ROW_SCALES = 8;
constexpr int32_t LLMC_FLAG_FLOAT_ROWS = 16;

// The weight of an op whose dims and tensors are those of linear.
static inline PackedWeight weight_of(const LlmcOp& op) {
    PackedWeight weight;
    weight.type = op.type;
    weight.K = op.dim[0];
    weight.panels = static_cast<const char*>(op.tensor[0]);
    weight.groups = static_cast<const float*>(op.tensor[3]);
    weight.group_size = op.dim[3];
    weight.zeros = op.dim[4] != 0;
    weight.integer_rows = op.flags & LLMC_FLAG_INTEGER_ROWS;
    weight.float_rows = op.flags & LLMC_FLAG_FLOAT_ROWS;
    return weight;
}

struct Plan {
    int64_t rows, row_blocks, groups, panels_per_task;
};

// The rows and panels of one task.
struct Part {
    int64_t block, first_row, rows, first_panel, last_panel;

    Part(const LlmcOp& op, const Plan& plan, int64_t task) : block(task / plan.groups) {
        first_row = block_start(plan.rows, plan.row_blocks, block);
        rows = block_start(plan.rows, plan.row_blocks, block + 1) - first_row;
        first_panel = task % plan.groups * plan.panels_per_task;
        last_panel = min64(op.dim[2], first_panel + plan.panels_per_task);
    }
};

// Whether this thread has yet to pack the rows of `block`; notes that it has.
static inline bool must_pack(const LlmcOp& op, Scratch& scratch, int64_t block) {
    if (scratch.packed_op == &op && scratch.packed_block == block) return false;
    scratch.packed_op = &op;
    scratch.packed_block = block;
    return true;
}

}  // namespace LLMC_NS
