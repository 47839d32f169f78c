// The (token, choice) pairs of a step that go to this rank's experts, those of one expert together.
#pragma once
#include "kernel.h"

namespace LLMC_NS {

// In memory: [number of active experts][most + 1: experts][most + 1: where each one's pairs start, and
// an end][most: pairs], where `most` is T * k. A pair is token * k + choice.
struct Assignments {
    int32_t* data;
    int64_t most;

    Assignments(float* memory, int64_t tokens, int64_t k)
        : data(reinterpret_cast<int32_t*>(memory)), most(tokens * k) {}

    int32_t& num_active() const { return data[0]; }
    int32_t& expert(int64_t i) const { return data[1 + i]; }  // of the rank's, from 0, rising
    int32_t& start(int64_t i) const { return data[2 + most + i]; }
    int32_t* pairs() const { return data + 3 + 2 * most; }
    int64_t count(int64_t i) const { return start(i + 1) - start(i); }
};

// Columns of a value [T, ...] that holds them.
static inline int64_t assignment_columns(int64_t k) { return 3 * k + 3; }

}  // namespace LLMC_NS
