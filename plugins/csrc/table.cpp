// The kernels of one instruction set, by LlmcKind; a new kernel is one line here and one in abi.h.
#include "kernel.h"

namespace LLMC_NS {

extern const Kernel embedding, rms_norm, linear, rope_kv, attention, gated_activation, add,
    gather_last, round_rows, moe_routing, moe_group, moe_linear, moe_combine, sigmoid_gate,
    layer_norm, head_norm, qk_squares, wide_qk_norm, activation, position_embedding,
    logits_transform, clamp, mla_qkv, take_columns;

KernelTable kernels() {
    static Kernel table[LLMC_NUM_KINDS];
    table[LLMC_EMBEDDING] = embedding;
    table[LLMC_RMS_NORM] = rms_norm;
    table[LLMC_LINEAR] = linear;
    table[LLMC_ROPE_KV] = rope_kv;
    table[LLMC_ATTENTION] = attention;
    table[LLMC_GATED_ACTIVATION] = gated_activation;
    table[LLMC_ADD] = add;
    table[LLMC_GATHER_LAST] = gather_last;
    table[LLMC_ROUND_ROWS] = round_rows;
    table[LLMC_MOE_ROUTING] = moe_routing;
    table[LLMC_MOE_GROUP] = moe_group;
    table[LLMC_MOE_LINEAR] = moe_linear;
    table[LLMC_MOE_COMBINE] = moe_combine;
    table[LLMC_SIGMOID_GATE] = sigmoid_gate;
    table[LLMC_LAYER_NORM] = layer_norm;
    table[LLMC_HEAD_NORM] = head_norm;
    table[LLMC_QK_SQUARES] = qk_squares;
    table[LLMC_WIDE_QK_NORM] = wide_qk_norm;
    table[LLMC_ACTIVATION] = activation;
    table[LLMC_POSITION_EMBEDDING] = position_embedding;
    table[LLMC_LOGITS_TRANSFORM] = logits_transform;
    table[LLMC_CLAMP] = clamp;
    table[LLMC_MLA_QKV] = mla_qkv;
    table[LLMC_TAKE_COLUMNS] = take_columns;
    return table;
}

}  // namespace LLMC_NS
