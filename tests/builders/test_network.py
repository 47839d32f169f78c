"""The network, run with the torch references, against transformers on tiny random llamas."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.network import build_network
from llmc.checkpoint import Quantization, tensor_schema
from llmc.errors import UnsupportedError
from tests.plugins.interpreter import Rank, run_step
from tests.plugins.ragged import TOKENS_PER_BLOCK, ragged_steps
from tests.plugins.tiny_llama import VARIANTS, TinyLlama

# The first two beyond, the last within the original 16 positions of the rope variants.
LENGTHS = (37, 21, 5)
CHUNKS = ((30, 9, 0), (1, 11, 0), (1, 1, 3), (5, 0, 2))


def make_ranks(tiny: TinyLlama, config: Any) -> list[Rank]:
    ranks = []
    for rank in range(config.mapping.world_size):
        tensors = tiny.rank_tensors(config, rank)
        network = build_network(config, rank)
        used = {name for call in network.ops for names in call.weights.values() for name in names}
        unused = tensors.keys() - used
        # A row-parallel bias is on every rank, added by the first.
        assert all(name.endswith((".dense.bias", ".proj.bias")) for name in unused), unused
        ranks.append(
            Rank.make(
                network,
                tensors.__getitem__,
                num_blocks=len(LENGTHS) * -(-max(LENGTHS) // TOKENS_PER_BLOCK),
                tokens_per_block=TOKENS_PER_BLOCK,
            )
        )
    return ranks


def all_logits(ranks: list[Rank], sequences: list[list[int]]) -> list[torch.Tensor]:
    """Return logits [length, vocab] of each sequence, gathered from ragged steps."""
    out = [[torch.empty(0)] * len(sequence) for sequence in sequences]
    for batch, rows in ragged_steps(sequences, CHUNKS):
        for (sequence, position), row in zip(rows, run_step(ranks, batch), strict=True):
            out[sequence][position] = row
    return [torch.stack(rows) for rows in out]


def sequences_of(tiny: TinyLlama) -> list[list[int]]:
    draw = np.random.default_rng(7).integers
    return [draw(0, tiny.arch.vocab_size, length).tolist() for length in LENGTHS]


def assert_equals_transformers(tiny: TinyLlama, config: Any, tolerance: float = 1e-4) -> None:
    sequences = sequences_of(tiny)
    found = all_logits(make_ranks(tiny, config), sequences)
    for have, sequence in zip(found, sequences, strict=True):
        want = tiny.logits(sequence)
        assert have.shape == want.shape
        assert (have - want).abs().max() < tolerance * want.std()


@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_logits_equal_transformers(variant: str) -> None:
    tiny = TinyLlama.make(**VARIANTS[variant])
    assert_equals_transformers(tiny, tiny.config())


@pytest.mark.parametrize("variant", ["gqa", "mqa", "both_biases", "odd_vocabulary"])
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_ranks_in_lockstep_equal_transformers(variant: str, tp: int, pp: int) -> None:
    tiny = TinyLlama.make(**VARIANTS[variant])
    assert_equals_transformers(tiny, tiny.config(tp=tp, pp=pp))


@pytest.mark.parametrize("sharding_dim", [0, 1])
def test_parallel_embedding_equals_transformers(sharding_dim: int) -> None:
    tiny = TinyLlama.make(vocab_size=97)
    config = tiny.config(tp=2, use_parallel_embedding=True, embedding_sharding_dim=sharding_dim)
    assert_equals_transformers(tiny, config)


def test_w8a16_multiplies_by_the_dequantized_weight() -> None:
    tiny = TinyLlama.make()
    config = tiny.config(quant="W8A16")
    quants = {
        call.name: call.attrs["quant"]
        for call in build_network(config, 0).ops
        if call.plugin == "linear"
    }
    assert quants.pop("lm_head") == "none" and set(quants.values()) == {"W8A16"}
    have = all_logits(make_ranks(tiny, config), sequences_of(tiny))
    # transformers with the same rounding, written out: scale amax / 128, clamp -128..127.
    with torch.no_grad():
        for name, value in tiny.model.named_parameters():
            if "_proj" in name:
                scale = value.abs().amax(1, keepdim=True) / 128
                value.copy_((value / scale).round().clamp(-128, 127) * scale)
    for logits, sequence in zip(have, sequences_of(tiny), strict=True):
        want = tiny.logits(sequence)
        assert (logits - want).abs().max() < 1e-4 * want.std()


def test_sliding_window_equals_mistral() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    tiny = TinyLlama.make()
    settings = {
        name: getattr(tiny.model.config, name)
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
            "rope_parameters",
        )
    }
    mistral: Any = MistralForCausalLM(MistralConfig(**settings, sliding_window=6))
    mistral.eval()
    mistral.load_state_dict(tiny.model.state_dict())
    windowed = replace(tiny, arch=replace(tiny.arch, sliding_window=6))
    sequence = sequences_of(tiny)[0]
    with torch.no_grad():
        want = mistral(torch.tensor([sequence])).logits[0]
    assert (want - tiny.logits(sequence)).abs().max() > want.std()
    have = all_logits(make_ranks(windowed, windowed.config()), sequences_of(tiny))[0]
    assert (have - want).abs().max() < 1e-4 * want.std()


def test_a_later_stage_takes_the_formats_of_its_own_layers() -> None:
    """Layers are counted inside the stage; what quantizes them is named by the whole model's."""
    tiny = TinyLlama.make()
    fourth = {f"transformer.layers.3.mlp.{name}": "FP8" for name in ("fc", "gate", "proj")}
    config = replace(tiny.config(pp=2), quantization=Quantization.mixed(fourth))
    linears = {call.name: call for call in build_network(config, 1).ops if call.plugin == "linear"}
    quants = {name: call.attrs["quant"] for name, call in linears.items()}
    assert quants["transformer.layers.0.mlp.proj"] == "none"
    assert quants["transformer.layers.1.mlp.proj"] == "FP8"
    weights = linears["transformer.layers.1.mlp.proj"].weights
    prefix = "transformer.layers.1.mlp.proj"
    assert weights["activation_scaling_factor"] == (f"{prefix}.activation_scaling_factor",)
    for rank in range(2):
        schema = tensor_schema(config, rank)
        for call in build_network(config, rank).ops:
            assert all(name in schema for names in call.weights.values() for name in names)


def test_every_reason_is_listed() -> None:
    tiny = TinyLlama.make()
    arch = replace(
        tiny.arch,
        hidden_act="selu",
        activation="selu",
        position_embedding_type="chatglm",
        family_settings={"residual_mlp": True, "moe": {"num_experts": 8}},
    )
    config = replace(tiny, arch=arch).config(tp=3)
    excluded = replace(config.quantization, quant_algo="W8A16", exclude_modules=("*.1.mlp.fc",))
    with pytest.raises(UnsupportedError) as caught:
        build_network(replace(config, quantization=excluded), 0)
    text = "\n".join(caught.value.reasons)
    for part in (
        "tp_size 3 does not divide num_attention_heads 4",
        "hidden_act: 'selu', expected one of silu, gelu,",
        "position_embedding_type: 'chatglm', expected one of rope_gpt_neox,",
        "residual_mlp: True, expected False",
        "moe.num_experts: 8, expected 0",
        "transformer.layers.1.mlp.fc is plain, transformer.layers.1.mlp.gate W8A16",
    ):
        assert part in text
