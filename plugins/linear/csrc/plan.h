// How linear cuts its work.
#pragma once
#include "panel.h"
#include "rows.h"

namespace LLMC_NS {

constexpr int32_t LLMC_FLAG_GATED = 2;
constexpr int32_t LLMC_FLAG_INTEGER_ROWS = 4;
constexpr int32_t LLMC_FLAG_ROW_SCALES = 8;
constexpr int32_t LLMC_FLAG_FLOAT_ROWS = 16;

constexpr int64_t MAX_ROW_BLOCK = 192;            // rows multiplied with a panel while it is in cache
constexpr int64_t ROW_BLOCK_BYTES = 384 * 1024;   // ... as long as they fit the L2 cache
constexpr int64_t K_CHUNK = W == 16 ? 128 : 256;  // rows of a panel that stay in L1 as floats

// Inputs that share a scale where int8 weights are multiplied in integers: 32767 * 128 * 512 is the
// most an int32 sum can hold.
constexpr int64_t K_GROUP = 256;

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
    // Whether this thread has yet to pack the rows; notes that it has.
    bool must_pack(const LlmcOp& op, Scratch& scratch) const {
        if (scratch.packed_op == &op && scratch.packed_block == block) return false;
        scratch.packed_op = &op;
        scratch.packed_block = block;
        return true;
    }
};

// Where the start of a thread's scratch memory holds what, in floats.
struct Workspace {
    float* c;         // [MAX_ROW_BLOCK][32] accumulators of one panel
    float* unpacked;  // [K_CHUNK][32] of a panel, or K_GROUP rows as int16
    float* packed;    // the row block, in the order the inner loop reads it

    explicit Workspace(float* memory)
        : c(memory), unpacked(c + MAX_ROW_BLOCK * PANEL), packed(unpacked + K_GROUP * PANEL) {}
};

}  // namespace LLMC_NS
