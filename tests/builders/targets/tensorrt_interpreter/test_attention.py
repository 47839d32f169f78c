"""Attention and the KV cache against plain loops over rows, heads and queries."""

import math
from typing import Any

import pytest
import torch

from llmc.errors import BuildError
from tests.builders.targets.tensorrt_interpreter.small_networks import SmallNetwork, trt

RNG = torch.Generator().manual_seed(1)
ROWS, HEADS, KV_HEADS, QUERIES, KEYS, SIZE = 2, 4, 2, 3, 7, 8


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=RNG)


Q, K, V = (
    random(ROWS, HEADS, QUERIES, SIZE),
    random(ROWS, KV_HEADS, KEYS, SIZE),
    random(ROWS, KV_HEADS, KEYS, SIZE),
)


def attend(bias: torch.Tensor) -> torch.Tensor:
    """Attention by loops; bias [ROWS, HEADS, QUERIES, KEYS] is added, -inf hides."""
    result = torch.zeros_like(Q)
    for row in range(ROWS):
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            for query in range(QUERIES):
                scores = K[row, kv_head] @ Q[row, head, query] + bias[row, head, query]
                weights = torch.exp(scores - scores.max())
                result[row, head, query] = (weights / weights.sum()) @ V[row, kv_head]
    return result


def run(causal: str, *, lengths: list[int] | None = None, mask: torch.Tensor | None = None) -> Any:
    network = SmallNetwork()
    tensors = [network.input(name, "FLOAT", *x.shape) for name, x in (("q", Q), ("k", K), ("v", V))]
    kind = getattr(trt.CausalMaskKind, causal)
    softmax = trt.AttentionNormalizationOp.SOFTMAX
    attention = network.definition.add_attention_v2(*tensors, softmax, kind)
    attention.decomposable = True
    inputs = {"q": Q, "k": K, "v": V}
    if lengths is not None:
        inputs["lengths"] = torch.tensor(lengths)
        attention.key_value_lengths = network.input("lengths", "INT32", ROWS)
    if mask is not None:
        inputs["mask"] = mask
        dtype = "BOOL" if mask.dtype == torch.bool else "FLOAT"
        attention.mask = network.input("mask", dtype, *mask.shape)
    network.output(attention.get_output(0), "result")
    return network.run(inputs)["result"]


def bias_of(visible: Any) -> torch.Tensor:
    bias = torch.full((ROWS, HEADS, QUERIES, KEYS), -math.inf)
    for row in range(ROWS):
        for query in range(QUERIES):
            for key in range(KEYS):
                if visible(row, query, key):
                    bias[row, :, query, key] = 0
    return bias


def test_every_key_is_seen_without_a_mask() -> None:
    torch.testing.assert_close(run("NONE"), attend(bias_of(lambda row, query, key: True)))


def test_upper_left_counts_from_the_first_key() -> None:
    wanted = attend(bias_of(lambda row, query, key: key <= query))
    torch.testing.assert_close(run("UPPER_LEFT"), wanted)


def test_lower_right_ends_at_each_rows_length() -> None:
    lengths = [7, 4]
    wanted = attend(bias_of(lambda row, query, key: key <= query + lengths[row] - QUERIES))
    torch.testing.assert_close(run("LOWER_RIGHT", lengths=lengths), wanted)
    whole = attend(bias_of(lambda row, query, key: key <= query + KEYS - QUERIES))
    torch.testing.assert_close(run("LOWER_RIGHT"), whole)


def test_lengths_hide_what_is_behind_them() -> None:
    lengths = [5, 2]
    wanted = attend(bias_of(lambda row, query, key: key < lengths[row]))
    torch.testing.assert_close(run("NONE", lengths=lengths), wanted)


@pytest.mark.parametrize("heads", [1, HEADS])
def test_masks_of_bools_and_of_numbers(heads: int) -> None:
    mask = torch.rand(ROWS, heads, QUERIES, KEYS, generator=RNG) > 0.4
    mask[..., 0] = True
    bias = torch.where(mask, 0.0, -math.inf).expand(ROWS, HEADS, QUERIES, KEYS)
    torch.testing.assert_close(run("NONE", mask=mask), attend(bias))
    numbers = random(ROWS, heads, QUERIES, KEYS)
    wanted = attend(numbers.expand(ROWS, HEADS, QUERIES, KEYS))
    torch.testing.assert_close(run("NONE", mask=numbers), wanted)


def test_a_length_beyond_the_keys_is_an_error() -> None:
    with pytest.raises(BuildError, match=r"key_value_lengths \[8, 4\] of 7 keys"):
        run("LOWER_RIGHT", lengths=[8, 4])


def test_a_query_that_sees_nothing_is_an_error() -> None:
    with pytest.raises(BuildError, match="no key is visible"):
        run("LOWER_RIGHT", lengths=[7, 2])


def test_packed_queries_are_refused() -> None:
    network = SmallNetwork()
    q, k, v = (network.input(name, "HALF", 2, 4, 8, 64) for name in "qkv")
    attention = network.definition.add_attention_v2(
        q, k, v, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE
    )
    attention.query_form = trt.AttentionIOForm.PACKED_NHD
    network.output(attention.get_output(0), "result")
    with pytest.raises(BuildError, match="cannot tell its shape"):
        network.run(dict.fromkeys("qkv", torch.zeros(2, 4, 8, 64)))


def test_quantized_probabilities() -> None:
    """FP8 attention: the softmax is rounded to E4M3 steps of its scale."""
    network = SmallNetwork()
    q, k, v = (network.input(n, "HALF", *x.shape) for n, x in (("q", Q), ("k", K), ("v", V)))
    attention = network.definition.add_attention_v2(
        q, k, v, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE
    )
    scale = 2.0**-8
    attention.normalization_quantize_scale = network.constant(torch.tensor(scale), "FLOAT")
    attention.normalization_quantize_to_type = trt.fp8
    network.output(attention.get_output(0), "result")
    weights = (Q @ K.repeat_interleave(2, 1).mT).softmax(-1)
    rounded = (weights / scale).to(torch.float8_e4m3fn).float() * scale
    assert not torch.equal(rounded, weights)
    result = network.run({"q": Q, "k": K, "v": V})["result"]
    torch.testing.assert_close(result, rounded @ V.repeat_interleave(2, 1))


def test_kv_cache_is_written_in_place_and_only_inside() -> None:
    """Row 0 gets 3 tokens from 2 on; row 1 begins at 6 of 7 and the rest falls off."""
    network = SmallNetwork()
    cache = network.input("cache", "HALF", ROWS, KV_HEADS, KEYS, SIZE)
    update = network.input("update", "HALF", ROWS, KV_HEADS, 3, SIZE)
    places = network.input("places", "INT32", ROWS)
    layer = network.definition.add_kv_cache_update(cache, update, places, trt.KVCacheMode.LINEAR)
    network.output(layer.get_output(0), "updated")
    memory = torch.full((ROWS, KV_HEADS, KEYS, SIZE), 9.0)
    new = random(ROWS, KV_HEADS, 3, SIZE)
    found = network.run({"cache": memory, "update": new, "places": torch.tensor([2, 6])})
    assert found["updated"] is memory
    wanted = torch.full_like(memory, 9.0)
    wanted[0, :, 2:5], wanted[1, :, 6:] = new[0], new[1, :, :1]
    assert torch.equal(memory, wanted)
