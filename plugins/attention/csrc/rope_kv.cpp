// Rotates queries and keys by position, in place, and writes keys and values to the paged cache.
//
// input: qkv [T, (heads + 2 kv_heads) * head_size]. dim: 0 heads, 1 kv_heads, 2 head_size,
// 3 rotary_dim, 4 tokens_per_block, 5 which columns turn together (Style), 6 original length (0: angles
// depend on the position alone), 7 what holds beyond it: 0 the tables' rows from there on, 1 dynamic NTK.
// tensor: 0 cos, 1 sin [positions, rotary_dim / 2], 2 cache.
// param: 0 what keys and values are multiplied with before they are rounded to int8 or e4m3, 1 base and
// 2 factor of dynamic NTK.
#include <math.h>

#include "kv_cache.h"
#include "rounding.h"
#include "rows.h"

namespace LLMC_NS {

constexpr int64_t TOKENS_PER_TASK = 8;

static int64_t num_tasks(const LlmcOp&, const Step& step) {
    return ceil_div(step.batch->num_tokens, TOKENS_PER_TASK);
}

enum Style : int64_t { NONE = 0, HALVES = 1, PAIRS = 2 };

constexpr int64_t MAX_HALF = 256;

// cos and sin of one token after another.
struct Angles {
    const LlmcOp& op;
    const int64_t half;
    int64_t length = 0;  // that `frequencies` are of
    float frequencies[MAX_HALF], computed_cos[MAX_HALF], computed_sin[MAX_HALF];
    const float *cos, *sin;

    explicit Angles(const LlmcOp& op) : op(op), half(op.dim[3] / 2) {}

    // The angles of a sequence depend on its length once that is beyond the original: for a token of
    // the prompt on the prompt's, for a later one on its own place.
    void of(int64_t position, int64_t prompt) {
        const int64_t reach = max64(prompt, position + 1), original = op.dim[6];
        const bool is_long = original && reach > original;
        if (is_long && op.dim[7]) return compute(position, reach);
        const int64_t row = (is_long ? original : 0) + position;
        cos = static_cast<const float*>(op.tensor[0]) + row * half;
        sin = static_cast<const float*>(op.tensor[1]) + row * half;
    }

    // Source: transformers 5.24 modeling_rope_utils.py, _compute_dynamic_ntk_parameters.
    void compute(int64_t position, int64_t reach) {
        if (length != reach) {
            const double size = (double)op.dim[3], factor = op.param[2];
            const double stretch = factor * reach / op.dim[6] - (factor - 1);
            const double base = op.param[1] * pow(stretch, size / (size - 2));
            for (int64_t i = 0; i < half; i++) frequencies[i] = (float)pow(base, -2 * i / size);
            length = reach;
        }
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)position * frequencies[i];
            computed_cos[i] = cosf(angle);
            computed_sin[i] = sinf(angle);
        }
        cos = computed_cos;
        sin = computed_sin;
    }
};

static void rotate_halves(float* x, int64_t half, const float* cos, const float* sin) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

static void rotate_pairs(float* x, int64_t half, const float* cos, const float* sin) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}

template <int TYPE>
static void put(void* panel, int64_t offset, float x, float factor) {
    if (TYPE == LLMC_F32) static_cast<float*>(panel)[offset] = x;
    else if (TYPE == LLMC_I8) static_cast<int8_t*>(panel)[offset] = (int8_t)round_int8(x * factor);
    else if (TYPE == LLMC_F8)
        static_cast<uint8_t*>(panel)[offset] = e4m3_code(round_e4m3(x * factor));
    else static_cast<uint16_t*>(panel)[offset] = TYPE == LLMC_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

template <int TYPE>
static void write_token(const KvLayout& layout, int64_t size, char* unit, int64_t slot,
                        const float* key, const float* value, float factor) {
    for (int64_t i = 0; i < size; i++)
        put<TYPE>(unit, panel_offset(TYPE, i, slot), key[i], factor);
    char* values = unit + layout.values_offset();
    for (int64_t i = 0; i < size; i++)
        put<TYPE>(values + i / PANEL * layout.panel_bytes(), panel_offset(TYPE, slot, i % PANEL),
                  value[i], factor);
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch&) {
    const LlmcBatch& batch = *step.batch;
    const KvLayout layout(op);
    Angles angles(op);
    const int64_t heads = op.dim[0], kv_heads = op.dim[1], size = op.dim[2], half = op.dim[3] / 2;
    const int64_t end = min64(batch.num_tokens, (task + 1) * TOKENS_PER_TASK);
    for (int64_t t = task * TOKENS_PER_TASK; t < end; t++) {
        const int64_t position = batch.positions[t];
        const int32_t* table = batch.block_tables + batch.token_sequence[t] * batch.max_blocks;
        float* q = step.buffers[op.input] + t * (heads + 2 * kv_heads) * size;
        float* k = q + heads * size;
        float* v = k + kv_heads * size;
        if (op.dim[5] != NONE) angles.of(position, batch.prompt_lens[batch.token_sequence[t]]);
        for (int64_t h = 0; h < heads + kv_heads; h++) {
            if (op.dim[5] == HALVES) rotate_halves(q + h * size, half, angles.cos, angles.sin);
            if (op.dim[5] == PAIRS) rotate_pairs(q + h * size, half, angles.cos, angles.sin);
        }
        for (int64_t h = 0; h < kv_heads; h++) {
            char* unit = layout.unit(op.tensor[2], table, position / 32, h);
            const float *key = k + h * size, *value = v + h * size;
#define LLMC_CASE(TYPE)                                                                      \
    if (op.type == TYPE)                                                                     \
        write_token<TYPE>(layout, size, unit, position % 32, key, value, op.param[0]);
            LLMC_CASE(LLMC_F32) LLMC_CASE(LLMC_F16) LLMC_CASE(LLMC_BF16)
            LLMC_CASE(LLMC_I8) LLMC_CASE(LLMC_F8)
#undef LLMC_CASE
        }
    }
}

extern const Kernel rope_kv = {num_tasks, run};

}  // namespace LLMC_NS
