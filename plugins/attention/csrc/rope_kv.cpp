// Rotates queries and keys by position (neox halves), in place, and writes keys and values to the
// paged cache.
//
// input: qkv [T, (heads + 2 kv_heads) * head_size]. dim: 0 heads, 1 kv_heads, 2 head_size,
// 3 rotary_dim, 4 tokens_per_block. tensor: 0 cos, 1 sin [positions, rotary_dim / 2], 2 cache.
#include "kv_cache.h"
#include "rows.h"

namespace LLMC_NS {

constexpr int64_t TOKENS_PER_TASK = 8;

static int64_t num_tasks(const LlmcOp&, const Step& step) {
    return ceil_div(step.batch->num_tokens, TOKENS_PER_TASK);
}

static void rotate(float* x, int64_t half, const float* cos, const float* sin) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

template <int TYPE>
static void put(void* panel, int64_t offset, float x) {
    if (TYPE == LLMC_F32) static_cast<float*>(panel)[offset] = x;
    else static_cast<uint16_t*>(panel)[offset] = TYPE == LLMC_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

template <int TYPE>
static void write_token(const KvLayout& layout, int64_t size, char* unit, int64_t slot,
                        const float* key, const float* value) {
    for (int64_t i = 0; i < size; i++) put<TYPE>(unit, panel_offset(TYPE, i, slot), key[i]);
    char* values = unit + layout.values_offset();
    for (int64_t i = 0; i < size; i++)
        put<TYPE>(values + i / PANEL * layout.panel_bytes(), panel_offset(TYPE, slot, i % PANEL),
                  value[i]);
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const LlmcBatch& batch = *step.batch;
    const KvLayout layout(op);
    const int64_t heads = op.dim[0], kv_heads = op.dim[1], size = op.dim[2], half = op.dim[3] / 2;
    const int64_t end = min64(batch.num_tokens, (task + 1) * TOKENS_PER_TASK);
    for (int64_t t = task * TOKENS_PER_TASK; t < end; t++) {
        const int64_t position = batch.positions[t];
        const int32_t* table = batch.block_tables + batch.token_sequence[t] * batch.max_blocks;
        float* q = step.buffers[op.input] + t * (heads + 2 * kv_heads) * size;
        float* k = q + heads * size;
        float* v = k + kv_heads * size;
        const float* cos = static_cast<const float*>(op.tensor[0]) + position * half;
        const float* sin = static_cast<const float*>(op.tensor[1]) + position * half;
        for (int64_t h = 0; h < heads + kv_heads; h++) rotate(q + h * size, half, cos, sin);
        for (int64_t h = 0; h < kv_heads; h++) {
            char* unit = layout.unit(op.tensor[2], table, position / 32, h);
            const float *key = k + h * size, *value = v + h * size;
            if (op.type == LLMC_F32) write_token<LLMC_F32>(layout, size, unit, position % 32, key, value);
            if (op.type == LLMC_F16) write_token<LLMC_F16>(layout, size, unit, position % 32, key, value);
            if (op.type == LLMC_BF16) write_token<LLMC_BF16>(layout, size, unit, position % 32, key, value);
        }
    }
}

extern const Kernel rope_kv = {num_tasks, run};

}  // namespace LLMC_NS
