"""Rotary tables against transformers' own, for every scaling."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from llmc.errors import UnsupportedError
from llmc.plugins.rope import rope_tables

HALF = 16
SHORT = [1.0 + 0.05 * i for i in range(HALF)]
ORIGINAL = {"original_max_position_embeddings": 64}

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        **ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    "yarn_untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "truncate": False,
        "beta_fast": 16,
        "beta_slow": 2,
        **ORIGINAL,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        **ORIGINAL,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 1.3,
        **ORIGINAL,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": [9.0] * HALF,
        **ORIGINAL,
    },
}


def tables(scaling: dict[str, Any] | None, num_positions: int) -> tuple[Any, Any]:
    return rope_tables(
        rotary_base=5000.0,
        rotary_dim=2 * HALF,
        rotary_scaling=scaling,
        max_position_embeddings=256,
        num_positions=num_positions,
    )


@pytest.mark.parametrize("name", SCALINGS)
def test_tables_equal_transformers(name: str) -> None:
    num_positions = 64 if name == "longrope" else 256
    scaling = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0} | scaling,
    )
    rotary = LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(num_positions)[None])
    ours = tables(scaling or None, num_positions)
    for want, have in zip((cos, sin), ours, strict=True):
        assert have.dtype == np.float32
        # One unit in the last place of a frequency, times the position.
        np.testing.assert_allclose(have, want[0, :, :HALF].numpy(), atol=256 * 2**-22)


def test_older_key_and_alias_mean_the_same() -> None:
    new = tables({"rope_type": "linear", "factor": 2.0}, 8)
    old = tables({"type": "linear", "factor": 2.0}, 8)
    assert all(np.array_equal(a, b) for a, b in zip(new, old, strict=True))
    renamed = {**SCALINGS["longrope"], "rope_type": "su"}
    assert np.array_equal(tables(renamed, 8)[0], tables(SCALINGS["longrope"], 8)[0])


@pytest.mark.parametrize(
    ("scaling", "num_positions", "reason"),
    [
        (SCALINGS["dynamic"], 257, "257 positions; beyond 256"),
        (SCALINGS["longrope"], 65, "65 positions; beyond 64"),
        ({**SCALINGS["longrope"], "short_factor": [1.0]}, 8, "1 entries, expected 16"),
        ({"rope_type": "mrope"}, 8, "'mrope', expected one of default, dynamic"),
        ({"rope_type": "llama3", "factor": 8.0}, 8, "low_freq_factor: missing"),
    ],
)
def test_what_one_table_cannot_hold_is_refused(
    scaling: dict[str, Any], num_positions: int, reason: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        tables(scaling, num_positions)
    assert any(reason in line for line in caught.value.reasons)
