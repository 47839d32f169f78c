// How linear cuts its work, shared by the vector and the AMX path.
#pragma once
#include "panel.h"
#include "rows.h"

namespace LLMC_NS {

constexpr int32_t LLMC_FLAG_GATED = 2;

constexpr int64_t MAX_ROW_BLOCK = 192;          // rows multiplied with a panel while it is in cache
constexpr int64_t ROW_BLOCK_FLOATS = 96 * 1024;  // ... as long as they fit the L2 cache: 384 KB
constexpr int64_t K_CHUNK = W == 16 ? 128 : 256;  // rows of a panel that stay in L1 as floats

struct Plan {
    int64_t rows, row_blocks, groups, panels_per_task;
};

}  // namespace LLMC_NS
