"""The decoder architecture as data: everything that tells one supported model from another.

Field names are TensorRT-LLM's config.json names where it has them. A family file fills this from
the Hugging Face config; the checkpoint stores it; the network is built from it and nothing else.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArch:
    """One decoder-only model.

    `rotary_scaling` is the Hugging Face dict verbatim, as TensorRT-LLM keeps it. `sliding_window`
    is the number of most recent positions a token attends to, itself included (None: all);
    TensorRT-LLM's config.json has no place for it, so a checkpoint keeps it in its "llmc" object.
    `family_settings` are the family's further config.json keys, verbatim; the values a family
    writes change nothing in the network.
    """

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str = "silu"
    norm_epsilon: float = 1e-5
    position_embedding_type: str = "rope_gpt_neox"
    rotary_base: float = 10000.0
    rotary_embedding_dim: int
    rotary_scaling: dict[str, Any] | None = None
    attn_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    family_settings: dict[str, Any] = field(default_factory=dict)
