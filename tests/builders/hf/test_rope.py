from pathlib import Path
from typing import Any

import pytest

from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.rope import read_rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def read(**data: Any) -> tuple[float, dict[str, Any] | None, list[str]]:
    config = HfConfig(Path("config.json"), data)
    rope = read_rope(config, 16)
    config.question_unread()
    return rope.base, rope.scaling, config.reasons


@pytest.mark.parametrize(
    ("data", "base", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 500000}, 500000.0, None),
        ({"rope_theta": 5.0, "rope_scaling": None}, 5.0, None),
        ({"rope_scaling": {"rope_type": "default"}}, 10000.0, None),
        ({"rope_scaling": LLAMA3}, 10000.0, LLAMA3),
        ({"rope_scaling": LONGROPE}, 10000.0, LONGROPE),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            10000.0,
            {"type": "linear", "factor": 2.0},
        ),
        (
            {"rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 4, "truncate": False}},
            10000.0,
            {"type": "yarn", "rope_type": "yarn", "factor": 4, "truncate": False},
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, LLAMA3),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}, "rope_theta": 5e5}, 5e5, LLAMA3),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "rope_theta": 7.0},
            7.0,
            {"rope_type": "dynamic", "factor": 2.0},
        ),
        ({"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 1.0}}, 9.0, None),
    ],
)
def test_both_forms_are_read(
    data: dict[str, Any], base: float, scaling: dict[str, Any] | None
) -> None:
    assert read(**data) == (base, scaling, [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_scaling.rope_type: 'ntk'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: None, expected a value"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor: '2'"),
        ({"rope_scaling": {"type": "linear", "factor": True}}, "rope_scaling.factor: True"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}},
            "rope_scaling.beta_fast: 3, expected no such parameter of rope_type 'linear'",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}},
            "rope_scaling.type: 'linear', expected rope_type 'dynamic', or neither",
        ),
        (
            {"rope_scaling": {**LONGROPE, "long_factor": [1.0]}},
            "rope_scaling.long_factor: [1.0], expected a list of 8 numbers",
        ),
        (
            {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4},
            "rope_theta: 10000.0, expected rope_parameters.rope_theta 500000.0, or neither",
        ),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters.rope_theta: 'x'"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: 0.5, expected 1.0",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5, expected 1.0"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters.full_attention: ",
        ),
    ],
)
def test_what_is_not_understood_is_named(data: dict[str, Any], reason: str) -> None:
    reasons = read(**data)[2]
    assert any(line.startswith(f"config.json: {reason}") for line in reasons), reasons


def test_an_odd_head_cannot_rotate() -> None:
    config = HfConfig(Path("config.json"), {})
    read_rope(config, 15)
    assert config.reasons == [
        "config.json: head_dim: 15, expected an even number of columns for rotary embedding"
    ]
