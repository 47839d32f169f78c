"""Rotary angles against transformers' own, for every scaling, past the original length too."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from llmc.errors import UnsupportedError
from llmc.plugins.rope import LengthDependence, length_dependence, rope_angles, rope_tables

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


def settings_of(scaling: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "rotary_base": 5000.0,
        "rotary_dim": 2 * HALF,
        "rotary_scaling": scaling,
        "max_position_embeddings": 256,
    }


def rotary_of(scaling: dict[str, Any]) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0} | scaling,
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", (40, 64, 65, 256, 257, 700))
def test_prompts_equal_transformers(name: str, length: int) -> None:
    """Shorter and longer than the original 64 positions, and than the 256 of dynamic NTK."""
    want = rotary_of(SCALINGS[name])(torch.zeros(1), torch.arange(length)[None])
    lengths = np.full(length, length)
    scaling = SCALINGS[name] or None
    have = rope_angles(**settings_of(scaling), positions=np.arange(length), lengths=lengths)
    for ours, theirs in zip(have, want, strict=True):
        assert ours.dtype == np.float32
        # One unit in the last place of a frequency, times the position.
        np.testing.assert_allclose(ours, theirs[0, :, :HALF].numpy(), atol=length * 2**-22)


@pytest.mark.parametrize("name", SCALINGS)
def test_tokens_after_a_prompt_equal_transformers(name: str) -> None:
    """One by one across both borders, from a prompt within them."""
    rotary = rotary_of(SCALINGS[name])
    rotary(torch.zeros(1), torch.arange(50)[None])
    places = np.arange(50, 300)
    scaling = SCALINGS[name] or None
    cos, sin = rope_angles(**settings_of(scaling), positions=places, lengths=places + 1)
    for row, place in enumerate(places):
        want = rotary(torch.zeros(1), torch.tensor([[place]]))
        np.testing.assert_allclose(cos[row], want[0][0, 0, :HALF].numpy(), atol=300 * 2**-22)
        np.testing.assert_allclose(sin[row], want[1][0, 0, :HALF].numpy(), atol=300 * 2**-22)


def test_lengths_mix_in_a_batch() -> None:
    """Each token has the angles of its own length, in whatever order they come."""
    scaling = SCALINGS["dynamic"]
    positions = np.array([3, 3, 3, 3, 270])
    lengths = np.array([600, 20, 300, 600, 300])
    cos, _ = rope_angles(**settings_of(scaling), positions=positions, lengths=lengths)
    assert np.array_equal(cos[0], cos[3]) and not np.array_equal(cos[0], cos[1])
    for row in range(5):
        place, length = positions[row : row + 1], lengths[row : row + 1]
        alone, _ = rope_angles(**settings_of(scaling), positions=place, lengths=length)
        assert np.array_equal(alone[0], cos[row])


def test_what_depends_on_the_length_is_said() -> None:
    found = {name: length_dependence(scaling, 256) for name, scaling in SCALINGS.items()}
    dynamic, longrope = found.pop("dynamic"), found.pop("longrope")
    assert dynamic == LengthDependence(original=256, each=True)
    assert longrope == LengthDependence(original=64, each=False)
    assert set(found.values()) == {None}


def test_older_key_and_alias_mean_the_same() -> None:
    def tables(scaling: dict[str, Any]) -> Any:
        return rope_tables(**settings_of(scaling), num_positions=8)[0]

    old = {"type": "linear", "factor": 2.0}
    assert np.array_equal(tables({"rope_type": "linear", "factor": 2.0}), tables(old))
    renamed = {**SCALINGS["longrope"], "rope_type": "su"}
    assert np.array_equal(tables(renamed), tables(SCALINGS["longrope"]))


def test_an_original_length_left_out_is_the_models() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    given = {**yarn, "original_max_position_embeddings": 256}
    for left_out, wanted in zip(
        rope_tables(**settings_of(yarn), num_positions=300),
        rope_tables(**settings_of(given), num_positions=300),
        strict=True,
    ):
        assert np.array_equal(left_out, wanted)


@pytest.mark.parametrize(
    ("scaling", "reason"),
    [
        ({**SCALINGS["longrope"], "short_factor": [1.0]}, "short_factor: 1 entries, expected 16"),
        ({**SCALINGS["longrope"], "long_factor": [1.0]}, "long_factor: 1 entries, expected 16"),
        ({"rope_type": "mrope"}, "'mrope', expected one of default, dynamic"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor: missing"),
    ],
)
def test_what_is_not_understood_is_refused(scaling: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        rope_tables(**settings_of(scaling), num_positions=8)
    assert any(reason in line for line in caught.value.reasons)


@pytest.mark.parametrize(("name", "original"), [("dynamic", 256), ("longrope", 64)])
def test_one_table_for_every_length_ends_at_the_original(name: str, original: int) -> None:
    settings = settings_of(SCALINGS[name])
    assert len(rope_tables(**settings, num_positions=original)[0]) == original
    with pytest.raises(UnsupportedError, match=f"beyond {original} angles change"):
        rope_tables(**settings, num_positions=original + 1)
