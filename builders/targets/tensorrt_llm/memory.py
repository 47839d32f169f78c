"""Whether weights, activations and KV cache of a rank fit its GPU.

KV blocks are what TensorRT-LLM allocates: a fraction of the memory that is free once weights and
execution context are loaded, in whole blocks, rounded up.
Source: NVIDIA/TensorRT-LLM docs/source/legacy/reference/memory.md, whose example (70.48 GiB free,
fraction 0.9, blocks of 64 tokens at 256 KiB a token) is 4,060 blocks. What TensorRT needs for
activations is known after the build alone; `activation_bytes` is a lower bound of our own: the
tensors that are live in the widest layer.
"""

import math
from dataclasses import dataclass, replace

from llmc.builders.targets import BuildLimits
from llmc.checkpoint import CheckpointConfig, file_mapping, tensor_schema

GIB = 1 << 30
_FLOAT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank; `kv_block_bytes` is one block over all its layers."""

    weight_bytes: int
    activation_bytes: int
    kv_block_bytes: int


def num_kv_blocks(free_bytes: float, fraction: float, block_bytes: int) -> int:
    """Return how many KV blocks fit `fraction` of the free memory, as TensorRT-LLM counts."""
    return math.ceil(free_bytes * fraction / block_bytes)


def kv_block_bytes(
    *, num_layers: int, num_kv_heads: int, head_size: int, tokens: int, element_bytes: int
) -> int:
    """Return the bytes of a block of `tokens` tokens: keys and values of every layer."""
    return 2 * num_layers * num_kv_heads * head_size * tokens * element_bytes


def rank_memory(config: CheckpointConfig, rank: int, limits: BuildLimits) -> RankMemory:
    """Return what rank `rank` needs."""
    arch, tp = config.arch, config.mapping.tp_size
    # Weights that are quantized at build are smaller in the engine than in the checkpoint.
    stored = config if config.layout else replace(config, layout="sm80")
    weights = sum(info.num_bytes for info in tensor_schema(stored, rank).values())
    layers = file_mapping(config.mapping, rank).stage_layers(arch.num_hidden_layers)
    kv_heads = -(-arch.num_key_value_heads // tp)
    heads = -(-arch.num_attention_heads // tp)
    size = _FLOAT_BYTES[config.dtype]
    row = 2 * arch.hidden_size + max(
        (heads + 2 * kv_heads) * arch.head_size, 2 * arch.intermediate_size // tp
    )
    logits = limits.max_batch_size * config.padded_vocab_size // tp * 4
    kv_algo = config.quantization.kv_cache_quant_algo
    return RankMemory(
        weight_bytes=weights,
        activation_bytes=limits.max_num_tokens * row * size + logits,
        kv_block_bytes=kv_block_bytes(
            num_layers=len(layers),
            num_kv_heads=kv_heads,
            head_size=arch.head_size,
            tokens=limits.tokens_per_block,
            element_bytes=1 if kv_algo else size,
        ),
    )


def memory_reasons(config: CheckpointConfig, limits: BuildLimits, memory_gib: float) -> list[str]:
    """Return why a rank does not fit a GPU of `memory_gib` with one sequence of full length."""
    reasons = []
    for rank in range(config.num_rank_files):
        need = rank_memory(config, rank, limits)
        blocks = math.ceil(limits.max_seq_len / limits.tokens_per_block)
        kv = blocks * need.kv_block_bytes
        total = need.weight_bytes + need.activation_bytes + kv
        if total > memory_gib * GIB:
            reasons.append(
                f"rank {rank} needs at least {total / GIB:.1f} GiB (weights"
                f" {need.weight_bytes / GIB:.1f}, activations {need.activation_bytes / GIB:.1f}, KV"
                f" cache of one sequence {kv / GIB:.1f}), the GPU has {memory_gib:g} GiB: more tp"
                " or pp, fewer max_num_tokens, or a quantization"
            )
    return reasons
