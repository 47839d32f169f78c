// Sizes of the pieces that products work in, and where a thread's scratch memory holds them.
#pragma once
#include "kernel.h"
#include "panel.h"

namespace LLMC_NS {

constexpr int64_t MAX_ROW_BLOCK = 192;            // rows multiplied with a panel while it is in cache
constexpr int64_t ROW_BLOCK_BYTES = 384 * 1024;   // ... as long as they fit the L2 cache
constexpr int64_t K_CHUNK = W == 16 ? 128 : 256;  // rows of a panel that stay in L1 as floats

// Inputs that share a scale where int8 weights are multiplied in integers: 32767 * 128 * 512 is the
// most an int32 sum can hold.
constexpr int64_t K_GROUP = 256;

// In floats, from the start of the scratch memory.
struct Workspace {
    float* c;         // [MAX_ROW_BLOCK][32] accumulators of one panel
    float* unpacked;  // [K_CHUNK][32] of a panel, or K_GROUP rows as int16
    float* packed;    // the row block, in the order the inner loop reads it

    explicit Workspace(float* memory)
        : c(memory), unpacked(c + MAX_ROW_BLOCK * PANEL), packed(unpacked + K_GROUP * PANEL) {}
};

}  // namespace LLMC_NS
