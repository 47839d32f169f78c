"""How much memory a calibration takes: one layer, what runs through it, and what is kept of it.

Hidden states of all tokens are on disk, so neither the number of layers nor of samples matters.
"""

from dataclasses import dataclass, replace
from math import prod

from llmc.builders.quantize.site import Algorithm
from llmc.checkpoint import CheckpointConfig, Linear, Quantization, layer_linears, tensor_specs
from llmc.dtypes import numpy_dtype
from llmc.mapping import Mapping

CHUNK_TOKENS = 2048
"""Tokens that pass through a layer at once; a longer sequence passes alone."""

KEPT_ROWS = 512
"""Input rows kept of every activation."""

TOGETHER_BYTES = 4 << 30
"""Inputs of a layer are quantized at once, as far as their scratch memory fits into this."""

RUNTIME = 256 << 20
"""Bytes of BLAS buffers, and of freed memory the allocator keeps; measured on CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes a calibration on the CPU kernels needs at its worst moment, by what they are for.

    `weights`: one layer in the model's dtype. `running`: what is gone when the algorithm begins,
    the layer in float32 in the order of the kernels, and a chunk in it. `observers`: kept input
    rows and Hessians of a layer. `scratch`: the algorithm's, and the float32 weights it works on.
    `disk`: the hidden states before and after a layer.
    """

    weights: int
    running: int
    observers: int
    scratch: int
    disk: int

    @property
    def memory(self) -> int:
        return RUNTIME + self.weights + self.observers + max(self.running, self.scratch)


def sites_at_once(config: CheckpointConfig, algorithm: Algorithm, *, most: int) -> int:
    """Return how many inputs of a layer are quantized at once, at most `most`, at least one."""
    return max(1, min(most, TOGETHER_BYTES // max(_scratch_of_sites(config, algorithm))))


def peak_bytes(
    config: CheckpointConfig,
    algorithm: Algorithm | None,
    *,
    num_tokens: int,
    longest: int,
    threads: int = 1,
) -> Peak:
    """Return what calibrating `num_tokens` tokens in sequences of at most `longest` takes."""
    arch = config.arch
    whole = replace(config, mapping=Mapping(), quantization=Quantization(), layout=None)
    sizes = [prod(spec.shape) for spec in tensor_specs(whole, 0) if spec.layer == 0]
    chunk = max(min(num_tokens, CHUNK_TOKENS), longest)
    # Values that do not live together share memory, if not all of it: residual, norm, attention's
    # output and the sum beside qkv, and of the MLP gate and up, and what they become. One more is
    # the magnitude of what is observed.
    heads = (arch.num_attention_heads + 4 * arch.num_key_value_heads) * arch.head_size
    row = 4 * arch.hidden_size + heads + 4 * arch.intermediate_size
    inputs = [linears[0].num_in for linears in _sites(config)]
    observers = scratch = 0
    if algorithm is not None:
        observers = sum(min(num_tokens, KEPT_ROWS) * width for width in inputs)
        if algorithm.needs_hessian:
            observers += sum(width**2 for width in inputs)
        largest = sorted(_scratch_of_sites(config, algorithm), reverse=True)
        scratch = sum(largest[: sites_at_once(config, algorithm, most=threads)])
    return Peak(
        weights=numpy_dtype(config.dtype).itemsize * sum(sizes),
        # While a weight is packed it is there twice more.
        running=4 * (sum(sizes) + 2 * max(sizes) + chunk * row),
        observers=4 * observers,
        scratch=scratch,
        disk=8 * num_tokens * arch.hidden_size,
    )


def _sites(config: CheckpointConfig) -> list[tuple[Linear, ...]]:
    """Return the linears of a layer by the input they share."""
    by_input: dict[str, tuple[Linear, ...]] = {}
    for linear in layer_linears(config.arch, 0):
        kind = linear.name.rpartition(".")[2]
        key = "fc" if kind == "gate" else kind
        by_input[key] = (*by_input.get(key, ()), linear)
    return list(by_input.values())


def _scratch_of_sites(config: CheckpointConfig, algorithm: Algorithm) -> list[int]:
    """Return the bytes that quantizing each input's linears takes, their weights included."""
    return [
        max(algorithm.scratch_bytes(one.num_out, one.num_in) for one in linears)
        + sum(4 * one.num_out * one.num_in for one in linears)
        for linears in _sites(config)
    ]
