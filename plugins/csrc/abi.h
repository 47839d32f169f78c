// The C ABI between Python and the kernels; plugins/native.py mirrors it field for field.
//
// Shape legend: T tokens of the step, S sequences, L rows whose logits are wanted.
#pragma once
#include <stdint.h>

#define LLMC_ABI_VERSION 3
#define LLMC_QUERY_TILE 16
#define LLMC_API extern "C" __attribute__((visibility("default")))

enum LlmcKind : int32_t {
    LLMC_EMBEDDING = 0,
    LLMC_RMS_NORM = 1,
    LLMC_LINEAR = 2,
    LLMC_ROPE_KV = 3,
    LLMC_ATTENTION = 4,
    LLMC_GATED_ACTIVATION = 5,
    LLMC_ADD = 6,
    LLMC_GATHER_LAST = 7,
    LLMC_ROUND_ROWS = 8,
    LLMC_MOE_ROUTING = 9,
    LLMC_MOE_GROUP = 10,
    LLMC_MOE_LINEAR = 11,
    LLMC_MOE_COMBINE = 12,
    LLMC_SIGMOID_GATE = 13,
    LLMC_LAYER_NORM = 14,
    LLMC_HEAD_NORM = 15,
    LLMC_QK_SQUARES = 16,
    LLMC_WIDE_QK_NORM = 17,
    LLMC_ACTIVATION = 18,
    LLMC_POSITION_EMBEDDING = 19,
    LLMC_LOGITS_TRANSFORM = 20,
    LLMC_CLAMP = 21,
    LLMC_MLA_QKV = 22,
    LLMC_TAKE_COLUMNS = 23,
    LLMC_NUM_KINDS = 24,
};

// Element types of stored tensors. Activations are always fp32. F8 is e4m3, F4 e2m1.
enum LlmcType : int32_t {
    LLMC_F32 = 0,
    LLMC_F16 = 1,
    LLMC_BF16 = 2,
    LLMC_I8 = 3,
    LLMC_F8 = 4,
    LLMC_I4 = 5,
    LLMC_F4 = 6,
};

// One op of a program. What `tensor`, `dim` and `param` mean is written above each kernel.
struct LlmcOp {
    int32_t kind;       // LlmcKind
    int32_t type;       // LlmcType of the weight, or of the KV cache
    int32_t input;      // index of a step buffer, -1 if unused
    int32_t input2;
    int32_t output;
    int32_t flags;
    int64_t dim[10];
    float param[4];
    void* tensor[4];
};

struct LlmcBatch {
    int64_t num_tokens;      // T
    int64_t num_sequences;   // S
    int64_t num_logits;      // L
    int64_t max_blocks;      // columns of block_tables
    const int32_t* token_ids;     // [T]
    const int32_t* positions;     // [T]
    const int32_t* query_start;   // [S + 1]
    const int32_t* context_lens;  // [S], keys after this step
    const int32_t* block_tables;  // [S, max_blocks]
    const int32_t* logits_rows;   // [L]
    const int32_t* prompt_lens;   // [S]
    const int32_t* token_sequence;  // [T], the sequence each token belongs to
    // Queries of one sequence in tiles of up to LLMC_QUERY_TILE tokens, for attention.
    int64_t num_tiles;
    const int32_t* tile_start;     // [num_tiles + 1], tokens
    const int32_t* tile_sequence;  // [num_tiles]
    double* op_seconds;           // null, or [number of ops]: filled with wall time per op
};
