// Where keys and values of a token lie in the paged cache of one layer.
//
// [block][kv head][32-token sub-block] units, each a key panel (K = head dim, columns = tokens) and
// then head_size/32 value panels (K = tokens, columns = dims). The head size is padded to 32.
#pragma once
#include "panel.h"

namespace LLMC_NS {

struct KvLayout {
    int64_t kv_heads, padded_size, subs_per_block, unit_bytes;
    int type;

    KvLayout(const LlmcOp& op)
        : kv_heads(op.dim[1]), padded_size(pad32(op.dim[2])), subs_per_block(op.dim[4] / 32),
          unit_bytes(2 * LLMC_NS::panel_bytes(op.type, padded_size)), type(op.type) {}

    // The unit holding tokens [32 * sub, 32 * sub + 32) of a sequence with this block table.
    char* unit(void* cache, const int32_t* table, int64_t sub, int64_t head) const {
        const int64_t block = table[sub / subs_per_block];
        const int64_t index = (block * kv_heads + head) * subs_per_block + sub % subs_per_block;
        return static_cast<char*>(cache) + index * unit_bytes;
    }
    int64_t panel_bytes() const { return LLMC_NS::panel_bytes(type, 32); }  // of one value panel
    int64_t values_offset() const { return LLMC_NS::panel_bytes(type, padded_size); }
};

}  // namespace LLMC_NS
