"""How much memory a calibration takes: one layer, what runs through it, and what is kept of it.

Hidden states of all tokens are on disk, so neither the number of layers nor of samples matters.
"""

from dataclasses import dataclass, replace
from math import prod

from llmc.builders.quantize.site import Algorithm
from llmc.checkpoint import CheckpointConfig, Quantization, layer_linears, tensor_specs
from llmc.dtypes import numpy_dtype
from llmc.mapping import Mapping

CHUNK_TOKENS = 2048
"""Tokens that pass through a layer at once; a longer sequence passes alone."""

KEPT_ROWS = 512
"""Input rows kept of every activation."""

RUNTIME = 256 << 20
"""Bytes of BLAS buffers, and of freed memory the allocator keeps; measured on CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes a calibration needs at its worst moment, by what they are for.

    `weights`: one layer in float32, and its largest tensor as it is read. `activations`: a chunk
    between two ops. `observers`: kept input rows and Hessians of a layer. `scratch`: the
    algorithm's, for one module. `disk` is the hidden states before and after a layer.
    """

    weights: int
    activations: int
    observers: int
    scratch: int
    disk: int

    @property
    def memory(self) -> int:
        # Activations are gone when the algorithm begins.
        return RUNTIME + self.weights + self.observers + max(self.activations, self.scratch)


def peak_bytes(
    config: CheckpointConfig, algorithm: Algorithm | None, *, num_tokens: int, longest: int
) -> Peak:
    """Return what calibrating `num_tokens` tokens in sequences of at most `longest` takes."""
    arch = config.arch
    whole = replace(config, mapping=Mapping(), quantization=Quantization(), layout=None)
    sizes = [prod(spec.shape) for spec in tensor_specs(whole, 0) if spec.layer == 0]
    linears = layer_linears(arch, 0)
    chunk = max(min(num_tokens, CHUNK_TOKENS), longest)
    # Widest moment: gate and up, the activated gate and the product, beside input and residual; or
    # attention's scores of one sequence, which torch holds as product, masked copy and softmax.
    mlp = chunk * (3 * arch.hidden_size + 4 * arch.intermediate_size)
    heads = chunk * (arch.num_attention_heads + 2 * arch.num_key_value_heads) * arch.head_size
    attention = 3 * heads + 3 * arch.num_attention_heads * longest**2
    sites = [linears[0].num_in, linears[1].num_in, linears[2].num_in, linears[-1].num_in]
    observers = scratch = 0
    if algorithm is not None:
        observers = sum(min(num_tokens, KEPT_ROWS) * width for width in sites)
        if algorithm.needs_hessian:
            observers += sum(width**2 for width in sites)
        scratch = max(algorithm.scratch_bytes(lin.num_out, lin.num_in) for lin in linears)
    return Peak(
        weights=4 * sum(sizes) + numpy_dtype(config.dtype).itemsize * max(sizes),
        activations=4 * max(mlp, attention),
        observers=4 * observers,
        scratch=scratch,
        disk=8 * num_tokens * arch.hidden_size,
    )
