"""Rank algebra of experts. Source: NVIDIA/TensorRT-LLM tensorrt_llm/mapping.py (0.17)."""

import pytest

from llmc.errors import UnsupportedError
from llmc.mapping import Mapping


def test_moe_sizes_fill_each_other_in() -> None:
    for given in ({}, {"moe_tp_size": 4}, {"moe_ep_size": 1}):
        mapping = Mapping(tp_size=4, **given)
        assert (mapping.moe_tp, mapping.moe_ep) == (4, 1)
    for given in ({"moe_tp_size": 2}, {"moe_ep_size": 2}, {"moe_tp_size": 2, "moe_ep_size": 2}):
        mapping = Mapping(tp_size=4, **given)
        assert (mapping.moe_tp, mapping.moe_ep) == (2, 2)


def test_neighbouring_tp_ranks_have_different_experts() -> None:
    mapping = Mapping(tp_size=4, pp_size=2, moe_ep_size=2)
    places = [(mapping.at(rank).moe_ep_rank, mapping.at(rank).moe_tp_rank) for rank in range(8)]
    assert places == [(0, 0), (1, 0), (0, 1), (1, 1)] * 2


def test_moe_sizes_must_multiply_to_tp() -> None:
    with pytest.raises(UnsupportedError, match=r"moe_tp_size 2 \* moe_ep_size 3 = 6, expected"):
        Mapping(tp_size=4, moe_tp_size=2, moe_ep_size=3)
