"""How the TensorRT lowering of `attention` turns queries and keys: by rows of tables.

Angles that change with a sequence's length are chosen in the network, for each token by its rope
length (llmc.plugins.rope): from a second table, or computed where every length has its own.

Legend: B slots, S tokens, N heads, D head_size, H half the rotary columns.
"""

from typing import Any

import numpy as np

from llmc.plugins.rope import length_dependence, rope_tables, tables_by_length
from llmc.plugins.tensorrt_lowering import Lowering, Tensor

_Angles = tuple[Tensor, Tensor, Tensor | None]
"""cos and sin, [rows, H] and the row [B, S] of each token, or [B, S, H] and None."""


def rotate(lowering: Lowering, x_BNSD: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Return q or k turned as its tokens' positions say."""
    if attrs["rope_style"] == "none":
        return x_BNSD
    layers = lowering.layers
    keys = ("rotary_base", "rotary_dim", "rotary_scaling", "max_position_embeddings")
    rope = {key: attrs[key] for key in keys}
    cos, sin, rows = lowering.shared(f"rope.{rope}", lambda: _angles(lowering, rope))
    layer = layers.named(
        layers.network.add_rotary_embedding(
            x_BNSD, cos, sin, attrs["rope_style"] == "gptj", attrs["rotary_dim"]
        ),
        "rotary",
    )
    if rows is not None:
        layer.set_input(3, rows)
    return layers.output(layer, "rotary")


def _angles(lowering: Lowering, rope: dict[str, Any]) -> _Angles:
    layers, num_positions = lowering.layers, lowering.max_seq_len
    positions = lowering.batch_input("positions")
    changes = length_dependence(rope["rotary_scaling"], rope["max_position_embeddings"])
    if changes is None or num_positions <= changes.original:
        tables, rows = rope_tables(**rope, num_positions=num_positions), positions
    elif changes.each:
        return _computed(lowering, rope)
    else:
        # Rows of long sequences follow those of short ones.
        tables = tables_by_length(**rope, num_positions=num_positions)
        is_long = layers.binary(
            "GREATER", *_alike(lowering, _rope_lengths(lowering), changes.original)
        )
        skipped = layers.select(
            is_long, *(layers.small([[rows]], "int32") for rows in (changes.original, 0))
        )
        rows = layers.binary("SUM", positions, skipped)
    cos, sin = (
        layers.cast(layers.small(table, "float32", "table"), lowering.dtype) for table in tables
    )
    return cos, sin, rows


def _alike(lowering: Lowering, tensor: Tensor, number: float) -> tuple[Tensor, Tensor]:
    return tensor, lowering.layers.like(number, tensor)


def _rope_lengths(lowering: Lowering) -> Tensor:
    """Return the rope length of each token, int32 [B, S]."""
    layers, positions = lowering.layers, lowering.batch_input("positions")
    prompts = layers.reshape(lowering.batch_input("prompt_lens"), (0, 1))
    return layers.binary("MAX", prompts, layers.binary("SUM", *_alike(lowering, positions, 1)))


def _computed(lowering: Lowering, rope: dict[str, Any]) -> _Angles:
    """Return the angles of dynamic NTK: each rope length beyond the original has a base of its own.

    An angle is position / (base * stretch^(dim / (dim - 2)))^(2 i / dim).
    """
    layers, scaling, dim = lowering.layers, rope["rotary_scaling"], rope["rotary_dim"]
    original, factor = rope["max_position_embeddings"], scaling["factor"]
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)

    def of_tokens(tensor: Tensor) -> Tensor:
        return layers.cast(layers.reshape(tensor, (0, 0, 1)), "float32")

    def of_columns(values: Any) -> Tensor:
        return layers.small(values[None, None], "float32")

    lengths = of_tokens(_rope_lengths(lowering))
    beyond = layers.binary("MAX", *_alike(lowering, lengths, original))
    stretch = layers.binary(
        "SUB", *_alike(lowering, layers.scaled(beyond, factor / original), factor - 1)
    )
    slower = layers.binary("POW", stretch, of_columns(exponents * -(dim / (dim - 2))))
    frequencies = of_columns(1 / np.float32(rope["rotary_base"]) ** exponents)
    positions = of_tokens(lowering.batch_input("positions"))
    angles = layers.binary("PROD", layers.binary("PROD", positions, frequencies), slower)
    cos, sin = (layers.cast(layers.unary(kind, angles), lowering.dtype) for kind in ("COS", "SIN"))
    return cos, sin, None
