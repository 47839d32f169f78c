from dataclasses import replace

import pytest

from llmc.arch import ModelArch, MoeArch
from llmc.checkpoint import (
    CheckpointConfig,
    Quantization,
    Segment,
    file_mapping,
    tensor_schema,
    unsplittable,
    valid_tp_sizes,
)
from llmc.errors import UnsupportedError
from llmc.mapping import Mapping

ARCH = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=64,
    num_hidden_layers=6,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_size=16,
    intermediate_size=96,
    vocab_size=101,
    max_position_embeddings=128,
    rotary_embedding_dim=16,
)


def config(**changes: object) -> CheckpointConfig:
    return replace(CheckpointConfig(arch=ARCH, dtype="float16"), **changes)  # type: ignore[arg-type]


def test_segments_cover_everything_once_when_ranks_divide() -> None:
    segment = Segment(count=12, size=16)
    for tp_size in (1, 2, 3, 4, 6, 12):
        spans = [segment.span(rank, tp_size) for rank in range(tp_size)]
        assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
        assert spans[-1][1] == segment.length
        assert all(stop - start == segment.local_length(tp_size) for start, stop in spans)


def test_ranks_share_units_when_there_are_fewer() -> None:
    segment = Segment(count=2, size=16)
    assert [segment.span(rank, 4) for rank in range(4)] == [(0, 16), (0, 16), (16, 32), (16, 32)]
    assert segment.local_length(4) == 16


def test_padding_is_at_the_end() -> None:
    segment = Segment(count=5, padded=True)
    assert [segment.span(rank, 4) for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]
    assert segment.local_length(4) == 2
    assert [Segment(count=1, padded=True).span(rank, 2) for rank in range(2)] == [(0, 1), (1, 1)]


def test_stages_hold_their_own_layers_counted_from_zero() -> None:
    split = config(mapping=Mapping(tp_size=2, pp_size=3))
    for rank in range(6):
        names = tensor_schema(split, rank).keys()
        layers = {name.split(".")[2] for name in names if ".layers." in name}
        assert layers == {"0", "1"}
        assert ("transformer.vocab_embedding.weight" in names) == (rank < 2)
        assert ("lm_head.weight" in names) == ("transformer.ln_f.weight" in names) == (rank >= 4)


def test_context_parallel_ranks_share_files() -> None:
    mapping = Mapping(tp_size=2, pp_size=3, cp_size=4)
    assert config(mapping=mapping).num_rank_files == 6
    for rank in range(6):
        at = file_mapping(mapping, rank)
        assert (at.pp_rank, at.tp_rank) == divmod(rank, 2)


def test_a_quantized_kv_cache_has_a_scale_per_layer() -> None:
    schema = tensor_schema(config(quantization=Quantization(kv_cache_quant_algo="FP8")), 0)
    info = schema["transformer.layers.3.attention.kv_cache_scaling_factor"]
    assert (info.dtype, info.shape) == ("float32", (1,))


def test_valid_tp_sizes_split_heads_kv_heads_and_columns() -> None:
    assert valid_tp_sizes(ARCH) == [1, 2, 4, 12]
    assert valid_tp_sizes(replace(ARCH, intermediate_size=98)) == [1, 2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"mapping": Mapping(tp_size=5)},
            "tp_size 5 does not divide num_attention_heads 12; valid tp_size: 1, 2, 4, 12",
        ),
        (
            {"mapping": Mapping(tp_size=3)},
            "tp_size 3 neither divides num_key_value_heads 4 nor is a multiple of it;"
            " valid tp_size: 1, 2, 4, 12",
        ),
        (
            {"mapping": Mapping(pp_size=4)},
            "pp_size 4 does not divide num_hidden_layers 6; valid pp_size: 1, 2, 3, 6",
        ),
        (
            {
                "mapping": Mapping(tp_size=12),
                "use_parallel_embedding": True,
                "embedding_sharding_dim": 1,
            },
            "embedding_sharding_dim 1: tp_size 12 does not divide hidden_size 64;"
            " use embedding_sharding_dim 0",
        ),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_what_does(
    changes: dict[str, object], reason: str
) -> None:
    assert reason in unsplittable(config(**changes))
    with pytest.raises(UnsupportedError) as caught:
        tensor_schema(config(**changes), 0)
    assert reason in caught.value.reasons


def test_every_reason_is_given() -> None:
    assert len(unsplittable(config(mapping=Mapping(tp_size=5, pp_size=4)))) == 4


MOE = replace(
    ARCH,
    moe=MoeArch(num_experts=6, top_k=2, intermediate_size=64, shared_expert_intermediate_size=50),
)


@pytest.mark.parametrize(
    ("arch", "mapping", "reason"),
    [
        (ARCH, {"tp_size": 2, "moe_ep_size": 2}, "moe_ep_size 2, but the model has no experts"),
        (MOE, {"tp_size": 4, "moe_ep_size": 4}, "moe_ep_size 4 does not divide num_experts 6"),
        (MOE, {"tp_size": 3}, "moe_tp_size 3 does not divide the experts' size 64 (more"),
        (MOE, {"tp_size": 4}, "tp_size 4 does not divide shared_expert_intermediate_size 50"),
    ],
)
def test_experts_that_cannot_be_shared_out(
    arch: ModelArch, mapping: dict[str, int], reason: str
) -> None:
    split = config(arch=arch, mapping=Mapping(**mapping))
    assert any(reason in found for found in unsplittable(split)), unsplittable(split)


def test_experts_may_be_shared_out_where_they_cannot_be_cut() -> None:
    arch = replace(ARCH, moe=MoeArch(num_experts=6, top_k=2, intermediate_size=65))
    shared_out = Mapping(tp_size=2, moe_ep_size=2)
    assert unsplittable(config(arch=arch, mapping=shared_out)) == []
    assert unsplittable(config(arch=arch, mapping=Mapping(tp_size=2)))
