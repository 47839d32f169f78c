// What a kernel is to the thread team: a number of independent tasks and a function for one of them.
//
// A kernel never splits a reduction over tasks, so results do not depend on the number of threads.
#pragma once
#include "abi.h"

struct Step {
    const LlmcBatch* batch;
    float* const* buffers;
    int threads;
};

// Private to a thread. `packed_*` names what the start of `memory` holds between tasks of one op.
struct Scratch {
    float* memory;           // 64-byte aligned, SCRATCH_FLOATS long
    const void* packed_op;
    int64_t packed_block;
};

constexpr int64_t SCRATCH_FLOATS = 1 << 20;

struct Kernel {
    int64_t (*num_tasks)(const LlmcOp& op, const Step& step);
    void (*run)(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch);
};

typedef const Kernel* KernelTable;  // LLMC_NUM_KINDS long, indexed by LlmcKind

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
