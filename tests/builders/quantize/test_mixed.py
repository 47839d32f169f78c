"""Choosing formats within a budget: the best there is, never too many bits, bits as stored."""

from dataclasses import replace
from itertools import product
from math import inf, prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc.arch import ModelArch
from llmc.builders.quantize import mixed
from llmc.builders.quantize.mixed import Group, Option, Sensitivities
from llmc.checkpoint import CheckpointConfig, Quantization, tensor_schema
from llmc.dtypes import numpy_dtype

ARCH = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_size=32,
    intermediate_size=256,
    vocab_size=64,
    max_position_embeddings=64,
    hidden_act="silu",
    norm_epsilon=1e-5,
    position_embedding_type="rope_gpt_neox",
    rotary_base=10000.0,
    rotary_embedding_dim=32,
)
OPTION = st.builds(
    Option,
    algo=st.just("FP8"),
    bits=st.integers(0, 30),
    # Quarters add up exactly, in whatever order.
    kl=st.integers(0, 40).map(lambda quarters: quarters / 4),
)
GROUPS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=5)


def cost(options: tuple[Option, ...]) -> tuple[int, float]:
    return sum(option.bits for option in options), sum(option.kl for option in options)


@given(groups=GROUPS, budget=st.integers(0, 120))
def test_choice_is_the_best_of_all(groups: list[list[Option]], budget: int) -> None:
    fitting = [kl for bits, kl in map(cost, product(*groups)) if bits <= budget]
    found = mixed.solve(groups, budget)
    if found is None:
        assert not fitting
        return
    assert all(option in group for option, group in zip(found, groups, strict=True))
    bits, kl = cost(found)
    assert bits <= budget and kl == min(fitting, default=inf)


@given(groups=GROUPS, budget=st.integers(0, 120), scale=st.integers(10_000, 10_000_019))
def test_large_budgets_are_kept_and_nearly_used(
    groups: list[list[Option]], budget: int, scale: int
) -> None:
    large = [[replace(option, bits=option.bits * scale) for option in group] for group in groups]
    budget *= scale
    # Counting in units costs at most one a group.
    slack = len(groups) * (budget // mixed.MAX_UNITS + 1)
    found = mixed.solve(large, budget)
    within = [kl for bits, kl in map(cost, product(*large)) if bits <= budget - slack]
    assert found is not None or not within
    if found is not None:
        bits, kl = cost(found)
        assert bits <= budget and kl <= min(within, default=inf)


@pytest.mark.parametrize("algo", ["W8A16", "W4A16_AWQ", "W4A16_GPTQ", "FP8", "NVFP4"])
def test_bits_are_those_of_the_checkpoint(algo: str) -> None:
    quantization = Quantization.of(algo, group_size=64 if "4A16" in algo else None)
    layout = "sm80" if algo in ("W8A16", "W4A16_GPTQ") else None
    config = CheckpointConfig(arch=ARCH, dtype="bfloat16", quantization=quantization, layout=layout)
    for name, linears in mixed.module_groups(ARCH):
        modules = tuple(f"{linear.name}." for linear in linears)
        stored = [info for key, info in tensor_schema(config, 0).items() if key.startswith(modules)]
        bits = sum(8 * numpy_dtype(info.dtype).itemsize * prod(info.shape) for info in stored)
        assert mixed.stored_bits(linears, quantization, "bfloat16") == bits, name


def test_every_module_of_a_layer_is_in_one_group() -> None:
    names = [linear.name for _, linears in mixed.module_groups(ARCH) for linear in linears]
    assert len(names) == len(set(names)) == 5 * ARCH.num_hidden_layers


def test_sensitivities_are_read_as_they_were_written(tmp_path: Path) -> None:
    options = (Option(algo=None, bits=160, kl=0.0), Option(algo="FP8", bits=84, kl=1.5e-4))
    group = Group(
        name="transformer.layers.0.mlp",
        layer=0,
        modules=("transformer.layers.0.mlp.fc",),
        num_weights=10,
        options=options,
    )
    found = Sensitivities(num_tokens=7, groups=(group,))
    found.write(tmp_path)
    assert Sensitivities.read(tmp_path) == found
    assert mixed.choose_options(found.groups, 8.4) == (options[1],)
    assert mixed.choose_options(found.groups, 8.3) is None
    assert mixed.average_bits(found.groups, options[:1]) == 16
