"""Spec of `attention`: RoPE on q and k, KV write, causal attention over the paged cache.

A score is scale * (q @ k), soft-capped, plus the ALiBi bias; the softmax over a token's scores may
have one more logit in its denominator, the head's sink.

Columns of `qkv` are [q heads | k heads | v heads]; query head i reads KV head
i // (num_heads // num_kv_heads). Token t of sequence s sits at batch.positions[t] and sees
positions 0..positions[t] of its own sequence. Block b of a sequence holds positions
[b * tokens_per_block, (b + 1) * tokens_per_block) at page batch.block_tables[s, b].

With `kv_quant` the cache holds keys and values divided by `kv_cache_scaling_factor` and rounded.
"""

from llmc.plugins.graph import Attribute, OpSpec, WeightRole

SPEC = OpSpec(
    name="attention",
    inputs={"qkv": ("T", "(num_heads + 2 * num_kv_heads) * head_size")},
    outputs={"context": ("T", "num_heads * head_size")},
    attributes={
        "layer": Attribute(
            types=(int,), meaning="index of the KV cache layer inside this rank's stage"
        ),
        "num_heads": Attribute(types=(int,), meaning="query heads on this rank"),
        "num_kv_heads": Attribute(types=(int,), meaning="KV heads on this rank"),
        "head_size": Attribute(types=(int,), meaning="columns of one head"),
        "rope_style": Attribute(
            types=(str,),
            meaning='"neox": columns i and i + rotary_dim / 2 of a head turn together; "gptj":'
            ' columns 2 i and 2 i + 1; "none": nothing turns',
        ),
        "rotary_dim": Attribute(types=(int,), meaning="leading columns of a head that turn"),
        "rotary_base": Attribute(types=(float,), meaning="theta of the inverse frequencies"),
        "rotary_scaling": Attribute(
            types=(dict, type(None)), meaning="Hugging Face rope_scaling, verbatim"
        ),
        "max_position_embeddings": Attribute(
            types=(int,), meaning="the model's, which scalings refer to"
        ),
        "sliding_window": Attribute(
            types=(int, type(None)), meaning="most recent positions a token sees, itself included"
        ),
        "alibi": Attribute(
            types=(dict, type(None)),
            meaning='bias by distance: {"first_head": int, "total_heads": int, "scaled": bool}, the'
            " place of this rank's heads among all; scaled: as Falcon's (plugins/alibi.py)",
        ),
        "softcap": Attribute(
            types=(float, type(None)), meaning="c in c * tanh(score / c), before any bias"
        ),
        "kv_quant": Attribute(
            types=(str,), meaning='"none" or the kv_cache_quant_algo: "INT8" or "FP8"'
        ),
        "scale": Attribute(types=(float,), meaning="factor of q @ k before the softmax"),
    },
    weights={
        "kv_cache_scaling_factor": WeightRole(shape=("1",), optional=True),
        "sinks": WeightRole(shape=("num_heads",), optional=True),
    },
    uses_kv_cache=True,
    reads_batch=("positions", "query_start", "context_lens", "block_tables", "prompt_lens"),
)
