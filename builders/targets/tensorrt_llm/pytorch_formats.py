"""How the PyTorch backend of TensorRT-LLM reads a quantized module, from a checkpoint's tensors.

Numbers stay the numbers they are: rows are picked, INT4 is packed again. Names and shapes are those
of ModelOpt's unified Hugging Face checkpoints, and of GPTQ's.

Source: NVIDIA/TensorRT-LLM main of 2026 (1.3), tensorrt_llm/_torch/modules/linear.py
(load_weights_*, get_quant_method) and _torch/models/checkpoints/hf/gptq.py; NVIDIA/Model-Optimizer
modelopt/torch/export/{unified_export_hf,quant_utils}.py.

Legend: out, in of the Hugging Face module.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import CheckpointError
from llmc.quant import integers, nvfp4
from llmc.quant.format import Choice, QuantizedLinear, load_format

Array = npt.NDArray[Any]
Tensors = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTensor:
    """One tensor of a module: the end of its name, dtype (None: the model's), shape."""

    suffix: str
    dtype: str | None
    shape: Callable[[int, int, int], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFormat:
    """A quant_algo as the PyTorch backend reads it.

    `write(stored, rows, name)` makes a module's tensors of `rows` of the checkpoint's, which are
    whole, by role; `name` is for messages. `settings` are keys of its quantization beside
    quant_algo; the group size is added where there is one. `alike` are roles of single scales that
    both halves of a gated MLP must have alike. `experts` says whether experts are read so, and
    `fused` whether modules that Hugging Face keeps as one (Phi-3's qkv_proj) are.
    """

    tensors: tuple[HfTensor, ...]
    write: Callable[[Tensors, npt.NDArray[np.intp], str], Tensors]
    settings: dict[str, Any]
    has_groups: bool = False
    alike: tuple[str, ...] = ()
    experts: bool = False
    fused: bool = False


def _shape(*dims: str) -> Callable[[int, int, int], tuple[int, ...]]:
    """Return the shape of `dims`, each "1", "out", "in" or "groups", divided as "in/2"."""

    def shape(num_out: int, num_in: int, group: int) -> tuple[int, ...]:
        sizes = {"1": 1, "out": num_out, "in": num_in, "groups": num_in // group}
        parts = [dim.partition("/") for dim in dims]
        return tuple(sizes[name] // int(divisor or 1) for name, _, divisor in parts)

    return shape


def _one(suffix: str, *dims: str) -> HfTensor:
    return HfTensor(suffix=suffix, dtype="float32", shape=_shape(*dims))


def _fp8(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
    return {
        "weight": stored["weight"][rows],
        "weight_scale": stored["weights_scaling_factor"].reshape(1),
        "input_scale": stored["activation_scaling_factor"].reshape(1),
    }


def _fp8_rows(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
    # One dimension: the backend copies it into one, and [out, 1] would not fit.
    return {
        "weight": stored["weight"][rows],
        "weight_scale": stored["per_channel_scale"][rows],
    }


def _nvfp4(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
    return {
        "weight": stored["weight"][rows],
        "weight_scale": stored["weights_scaling_factor"][rows],
        "weight_scale_2": stored["weights_scaling_factor_2"].reshape(()),
        "input_scale": stored["activation_scaling_factor"].reshape(()),
    }


def _awq(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
    values = integers.unpack_nibbles(stored["weight"], 0)[rows]
    return {
        "weight": integers.pack_nibbles(values, 0).view(np.uint8),
        "weight_scale": stored["weights_scaling_factor"][rows],
        "pre_quant_scale": stored["prequant_scaling_factor"],
    }


def _w4a8_awq(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
    return _awq(stored, rows, name) | {
        "weight_scale_2": stored["weights_scaling_factor_2"].reshape(()),
        "input_scale": stored["activation_scaling_factor"].reshape(()),
    }


def _weight_only(bits: int) -> Callable[[Tensors, npt.NDArray[np.intp], str], Tensors]:
    def write(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
        weight = stored["weight"]
        values = weight if bits == 8 else integers.unpack_nibbles(weight, 1)
        values = np.ascontiguousarray(values.T[rows])
        return {
            "weight": values if bits == 8 else integers.pack_nibbles(values, 0),
            "weight_scale": stored["per_channel_scale"][rows],
        }

    return write


def _gptq(stored: Tensors, rows: npt.NDArray[np.intp], name: str) -> Tensors:
    """Write zero points as they are (gptq_v2). Raises: CheckpointError where they are no integers.

    The checkpoint keeps (8 - zero point) * scale, rounded to the model's dtype.
    """
    elements = load_format("W4A16_GPTQ").unpack(QuantizedLinear(tensors=stored))
    assert elements.zero is not None
    scale, zero = elements.scale[rows], elements.zero[rows]
    points = 8 - np.rint(zero / np.where(scale > 0, scale, np.float32(1)))
    dtype = stored["zero"].dtype
    again = ((8 - points) * scale).astype(dtype).astype(np.float32)
    bad = (points < 0) | (points > 15) | (again != zero)
    if bad.any():
        where = [int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape)]
        raise CheckpointError(
            f"{name}: group {where}: zero {zero[tuple(where)]:g} with scale"
            f" {scale[tuple(where)]:g}, expected (8 - zero point) * scale of a zero point 0 to 15"
        )
    codes = (elements.values[rows] + np.int8(8)).astype(np.uint8)
    return {
        "qweight": _int32(np.ascontiguousarray(codes.T), 0),
        "qzeros": _int32(np.ascontiguousarray(points.T.astype(np.uint8)), 1),
        "scales": np.ascontiguousarray(scale.T.astype(dtype)),
    }


def _int32(codes: npt.NDArray[np.uint8], axis: int) -> npt.NDArray[np.int32]:
    """Return eight codes of four bits as an int32, the first in the lowest, along `axis`."""
    if axis == 0:
        return np.ascontiguousarray(_int32(np.ascontiguousarray(codes.T), 1).T)
    packed = (codes[:, ::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    return packed.view("<i4")


def quantize_plain(algo: str, weight: Array, dtype: str) -> Tensors:
    """Round a plain weight [out, in] of a checkpoint that leaves that to the target."""
    form = load_format(algo)
    return form.quantize(weight, Choice(dtype=dtype)).tensors


_E4M3 = "float8_e4m3fn"
_PREQUANT = HfTensor(suffix="pre_quant_scale", dtype=None, shape=_shape("in"))
_INT4 = HfTensor(suffix="weight", dtype="uint8", shape=_shape("out/2", "in"))
_ROW_SCALE = HfTensor(suffix="weight_scale", dtype=None, shape=_shape("out"))
_FP8_WEIGHT = HfTensor(suffix="weight", dtype=_E4M3, shape=_shape("out", "in"))

SECOND_SCALE = "weights_scaling_factor_2"
_ALIKE = ("activation_scaling_factor", SECOND_SCALE)

HF_FORMATS: dict[str, HfFormat] = {
    "FP8": HfFormat(
        tensors=(_FP8_WEIGHT, _one("weight_scale", "1"), _one("input_scale", "1")),
        write=_fp8,
        settings={},
        experts=True,
        fused=True,
    ),
    "FP8_PER_CHANNEL_PER_TOKEN": HfFormat(
        tensors=(_FP8_WEIGHT, _one("weight_scale", "out")), write=_fp8_rows, settings={}
    ),
    "NVFP4": HfFormat(
        tensors=(
            HfTensor(suffix="weight", dtype="uint8", shape=_shape("out", "in/2")),
            HfTensor(suffix="weight_scale", dtype=_E4M3, shape=_shape("out", f"in/{nvfp4.BLOCK}")),
            _one("weight_scale_2"),
            _one("input_scale"),
        ),
        write=_nvfp4,
        settings={},
        has_groups=True,
        alike=_ALIKE,
        experts=True,
        fused=True,
    ),
    "W4A16_AWQ": HfFormat(
        tensors=(_INT4, _one("weight_scale", "out", "groups"), _PREQUANT),
        write=_awq,
        settings={"has_zero_point": False, "pre_quant_scale": True},
        has_groups=True,
    ),
    "W4A8_AWQ": HfFormat(
        tensors=(
            *(_INT4, _one("weight_scale", "out", "groups"), _PREQUANT),
            *(_one("weight_scale_2"), _one("input_scale")),
        ),
        write=_w4a8_awq,
        settings={"has_zero_point": False, "pre_quant_scale": True},
        has_groups=True,
        alike=_ALIKE,
    ),
    "W4A16_GPTQ": HfFormat(
        tensors=(
            HfTensor(suffix="qweight", dtype="int32", shape=_shape("in/8", "out")),
            HfTensor(suffix="qzeros", dtype="int32", shape=_shape("groups", "out/8")),
            HfTensor(suffix="scales", dtype=None, shape=_shape("groups", "out")),
        ),
        write=_gptq,
        settings={"has_zero_point": True},
        has_groups=True,
    ),
    "W8A16": HfFormat(
        tensors=(
            HfTensor(suffix="weight", dtype="int8", shape=_shape("out", "in")),
            _ROW_SCALE,
        ),
        write=_weight_only(8),
        settings={},
    ),
    "W4A16": HfFormat(
        tensors=(
            HfTensor(suffix="weight", dtype="int8", shape=_shape("out/2", "in")),
            _ROW_SCALE,
        ),
        write=_weight_only(4),
        settings={},
    ),
}
"""quant_algo → how it is written; what is not here the PyTorch backend does not read."""

FOLDED = "W4A16_AWQ"
"""Its scales of the inputs of fused modules are read from the norm before them alone."""
