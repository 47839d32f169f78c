"""What every quantization format states about itself.

Legend: out, in of the module's weight [out, in]; groups = in / group_size, or 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from llmc import lookup
from llmc.quant import FORMATS

CHUNK_BYTES = 8 << 20
"""Weights are worked on in runs of rows whose float32 values take about this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantTensor:
    """One tensor that a quantized linear module has in the checkpoint.

    `dtype` None is the model's. `shape(out, in, group_size)` is the unsplit shape. `out_axis` and
    `in_axis` are the axes that follow the module's rows and columns: the one is split where the
    module is split by rows, the other where it is split by columns. `modules` are the last names
    of the modules that have this tensor ("qkv", "dense", "fc", "gate", "proj"), None for all.
    `beside_input`: it belongs to the module's input and is named there (see `tensor_name`).
    `optional`: TensorRT-LLM loads a checkpoint without it.
    """

    role: str
    dtype: str | None
    shape: Callable[[int, int, int], tuple[int, ...]]
    out_axis: int | None = None
    in_axis: int | None = None
    modules: tuple[str, ...] | None = None
    beside_input: bool = False
    optional: bool = False

    def belongs_to(self, module: str) -> bool:
        """Say whether `module`, as "transformer.layers.0.mlp.fc" or "fc", has this tensor."""
        return self.modules is None or module.rpartition(".")[2] in self.modules


EXPERTS_SHARE = ("activation_scaling_factor",)
"""Roles that experts have one tensor of, for the input of them all; the others are stacked.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/layers/moe.py, MOEWeightWrapper (and tests/goldens).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLinear:
    """The tensors of one module by role, as stored in the checkpoint, of the unsplit module.

    A weight is in row-major order of its declared shape; what `llmc.quant.layouts` does to it for
    one GPU generation comes after.
    """

    tensors: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """A weight as its numbers: weight ≈ values * scale + zero.

    `values` [out, in] are int8 or float8_e4m3fn (which holds every 4-bit float too). `scale` and
    `zero` are float32 [out or 1, groups]; each column of theirs covers in / groups columns.
    """

    values: npt.NDArray[Any]
    scale: npt.NDArray[np.float32]
    zero: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What an algorithm has chosen for one module; a format reads what it needs.

    `module` is its last name ("qkv", …), `dtype` the model's. `segments` are the rows of q, k and v
    of a fused qkv (None: one segment). `weight_amax` [out or 1, groups] replaces the largest
    magnitudes of the weight, to clip it or to share a scale; `global_amax` that of the whole
    weight. `input_amax` and `output_amax` are the largest magnitudes of the module's input (after
    scaling) and output. `prequant` [in] is what the input is multiplied by and `smoother` [in] what
    it is divided by; the weight given beside this has been scaled the other way already.
    `clamp` bounds weights and activations of FP8_PER_CHANNEL_PER_TOKEN.
    """

    module: str = "fc"
    dtype: str = "float32"
    group_size: int = 128
    segments: tuple[int, ...] | None = None
    weight_amax: npt.NDArray[np.float32] | None = None
    global_amax: float | None = None
    input_amax: float | None = None
    output_amax: float | None = None
    prequant: npt.NDArray[np.float32] | None = None
    smoother: npt.NDArray[np.float32] | None = None
    clamp: tuple[float, float] = (-1200.0, 1200.0)


class Encode(Protocol):
    """Round weight [out, in] to the nearest elements, scales from `choice` or the weight itself."""

    def __call__(self, weight: npt.NDArray[Any], choice: Choice) -> Elements: ...


class Pack(Protocol):
    """Turn elements into the tensors stored; exact, and undone by `unpack`."""

    def __call__(self, elements: Elements, choice: Choice) -> QuantizedLinear: ...


Activation = Literal[
    "none", "static int8", "per-token int8", "static fp8", "per-token fp8", "nvfp4"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantFormat:
    """One format.

    `algo` is TensorRT-LLM's quant_algo. `granularity` says what shares one scale. `activation` is
    how inputs are quantized at run time. `in_checkpoint` is "plain" when the checkpoint may keep
    weights in the model's dtype and each target quantizes them at build, "quantized" when it keeps
    the stored values. `needs_layout`: the stored weight is permuted for one GPU generation
    (`llmc.quant.layouts`). `after_split`: TensorRT-LLM quantizes each rank's part by itself, so
    that every rank has its own scales. `group_sizes` are those TensorRT-LLM has kernels for.
    `reads_output`: a scale of it follows from the module's largest output.
    `config` are the keys of config.json's `quantization` object that differ from their defaults.
    """

    algo: str
    granularity: Literal["per_channel", "per_group", "per_tensor"]
    activation: Activation
    needs_calibration: bool
    in_checkpoint: Literal["plain", "quantized"]
    tensors: tuple[QuantTensor, ...]
    encode: Encode
    pack: Pack
    unpack: Callable[[QuantizedLinear], Elements]
    weight_bits: Literal[4, 8]
    group_sizes: tuple[int, ...] = ()
    needs_layout: bool = False
    after_split: bool = False
    reads_output: bool = False
    config: dict[str, Any] = field(default_factory=dict)

    def quantize(self, weight: npt.NDArray[Any], choice: Choice | None = None) -> QuantizedLinear:
        """Round weight [out, in] of any float type to nearest and return what is stored of it."""
        choice = choice or Choice()
        return self.pack(self.encode(weight, choice), choice)

    def dequantize(self, quantized: QuantizedLinear) -> npt.NDArray[np.float32]:
        """Return the weight [out, in] that scaled inputs meet, as float32."""
        return decode(self.unpack(quantized))

    def tensors_of(self, module: str) -> tuple[QuantTensor, ...]:
        """Return the tensors that `module` has, in the order of the checkpoint."""
        return tuple(tensor for tensor in self.tensors if tensor.belongs_to(module))


def load_format(algo: str) -> QuantFormat:
    """Return the format of a quant_algo. Raises: UnsupportedError naming the known ones."""
    module = lookup.load(FORMATS, algo, package="llmc.quant", kind="quantization")
    form: QuantFormat = module.FORMAT
    return form


def tensor_name(tensor: QuantTensor, module: str) -> str:
    """Return the checkpoint's name of a tensor of `module` ("transformer.layers.0.attention.qkv").

    A tensor beside the input is that of the norm before qkv, fc and gate, and of the attention or
    the MLP itself before dense and proj. There the factor to INT8 has another name.
    """
    if not tensor.beside_input:
        return f"{module}.{tensor.role}"
    parent, _, kind = module.rpartition(".")
    if kind in ("dense", "proj"):
        renamed = {"scale_to_int": "quantization_scaling_factor"}
        return f"{parent}.{renamed.get(tensor.role, tensor.role)}"
    norm = {"qkv": "input_layernorm", "fc": "post_layernorm", "gate": "post_layernorm"}[kind]
    return f"{parent.rpartition('.')[0]}.{norm}.{tensor.role}"


def decode(elements: Elements) -> npt.NDArray[np.float32]:
    """Return values * scale + zero as float32 [out, in]."""
    num_in, groups = elements.values.shape[1], elements.scale.shape[1]
    weight: npt.NDArray[np.float32] = elements.values.astype(np.float32, order="C")
    grouped = weight.reshape(-1, groups, num_in // groups)
    grouped *= elements.scale[:, :, None]
    if elements.zero is not None:
        grouped += elements.zero[:, :, None]
    return weight


def row_chunks(weight: npt.NDArray[Any]) -> list[slice]:
    """Return runs of rows that take about CHUNK_BYTES in float32."""
    num_out, num_in = weight.shape
    step = max(1, CHUNK_BYTES // (4 * max(1, num_in)))
    return [slice(start, min(start + step, num_out)) for start in range(0, num_out, step)]


def group_amax(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[np.float32]:
    """Return the largest magnitude of every row's every group, float32 [out, groups]."""
    amax: npt.NDArray[np.float32] = np.empty((weight.shape[0], groups), np.float32)
    for rows in row_chunks(weight):
        magnitude = np.abs(np.asarray(weight[rows], np.float32))
        amax[rows] = magnitude.reshape(len(magnitude), groups, -1).max(axis=2, initial=0)
    return amax


def never_zero(scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return a scale to divide by: where nothing but zeros shares it, 1."""
    positive: npt.NDArray[np.float32] = np.where(scale > 0, scale, np.float32(1))
    return positive
