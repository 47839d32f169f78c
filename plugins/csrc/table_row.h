// Rows of an embedding table, stored one after another as fp32, fp16 or bf16.
#pragma once
#include "panel.h"

namespace LLMC_NS {

static inline float table_value(int type, const void* table, int64_t index) {
    if (type == LLMC_F32) return static_cast<const float*>(table)[index];
    const uint16_t bits = static_cast<const uint16_t*>(table)[index];
    return type == LLMC_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// y[columns] = the row starting at element `first`, times `scale`.
static inline void read_row(int type, const void* table, int64_t first, int64_t columns, float scale,
                            float* y) {
    for (int64_t i = 0; i < columns; i++) y[i] = table_value(type, table, first + i) * scale;
}

// y[columns] = x + the row starting at element `first`.
static inline void add_row(int type, const void* table, int64_t first, int64_t columns,
                           const float* x, float* y) {
    for (int64_t i = 0; i < columns; i++) y[i] = x[i] + table_value(type, table, first + i);
}

}  // namespace LLMC_NS
