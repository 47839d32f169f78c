// Rows times the panels of a weight, whatever it is stored as: what linear and the experts of moe share.
//
// float_rows.h multiplies float weights, fixed_point.h int8 and int4 weights, byte_rows.h int8 weights with
// int8 rows where the CPU has instructions for that, and with AMX tile_rows.h takes bf16, int8 and e4m3. Each sums over k = 0..K-1 in one order however many rows there are, so a row's
// result does not depend on the rows it is batched with.
#pragma once
#include "workspace.h"

namespace LLMC_NS {

// A weight [N, K] in panels. `groups` (null: none) are scales shared by `group_size` inputs (panel.h).
struct PackedWeight {
    int type;
    int64_t K;
    const char* panels;
    const float* groups;
    int64_t group_size;
    bool zeros;
    bool integer_rows;  // x are integers from -128 to 127 and keep their values
    bool float_rows;    // x are multiplied as they are, beside int4 weights

    // Whether rows are multiplied as 16-bit integers.
    bool is_fixed() const { return (type == LLMC_I8 || type == LLMC_I4) && !float_rows; }
    int64_t bytes_per_panel() const { return panel_bytes(type, pad32(K)); }
    Groups groups_of(int64_t panel) const {
        if (!groups) return Groups{};
        return {groups + panel * (K / group_size) * PANEL * (zeros ? 2 : 1), group_size, zeros};
    }
};

// Rows that may be multiplied at once.
static inline int64_t most_rows(const PackedWeight& weight) {
    const int64_t most = ROW_BLOCK_BYTES / (weight.K * (weight.is_fixed() ? 2 : 4));
    return max64(TILE_ROWS, min64(most, MAX_ROW_BLOCK));
}

// Takes c[rows, 32], the sums of one panel, which it may change.
struct PanelSink {
    void (*take)(const void* self, int64_t panel, float* c);
    const void* self;
};

// Multiplies x[rows, K], at most most_rows() of them, with panels [first, last). `pack`: `memory` (a
// thread's scratch) does not hold these rows of an earlier call yet.
void multiply_panels(const PackedWeight& weight, const float* x, int64_t rows, int64_t first,
                     int64_t last, bool pack, float* memory, PanelSink sink);

}  // namespace LLMC_NS
