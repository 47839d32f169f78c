"""Scales and their error: what several algorithms need, in numpy.

Legend: out, in are a module's features; G groups of g input channels; S kept input rows.
"""

import numpy as np

from llmc.builders.quantize.site import Floats, Module, Settings, Tensors
from llmc.dtypes import numpy_dtype
from llmc.quant.format import Choice, Elements, QuantizedLinear, load_format, tensor_name

_SMALLEST = np.float32(1e-5)


def round_to(values: Floats, dtype: str) -> Floats:
    """Return `values` as a tensor of `dtype` would keep them."""
    return values.astype(numpy_dtype(dtype)).astype(np.float32)


def choice_for(module: Module, settings: Settings) -> Choice:
    """Return what every algorithm tells the format of a module."""
    return Choice(
        module=module.name.rpartition(".")[2],
        dtype=settings.dtype,
        group_size=settings.group_size,
        segments=module.parts if len(module.parts) > 1 else None,
        output_amax=module.output_amax,
    )


def tensors_of(module: str, settings: Settings, choice: Choice, elements: Elements) -> Tensors:
    """Return the checkpoint tensors of a module whose elements are chosen."""
    form = load_format(settings.algo)
    stored = form.pack(elements, choice).tensors
    return {
        tensor_name(tensor, module): stored[tensor.role]
        for tensor in form.tensors_of(module)
        if tensor.role in stored
    }


def restored_weight(module: str, tensors: Tensors, settings: Settings) -> Floats:
    """Return the weight [out, in] that a module's checkpoint tensors stand for."""
    form = load_format(settings.algo)
    stored = {
        tensor.role: tensors[tensor_name(tensor, module)]
        for tensor in form.tensors_of(module)
        if tensor_name(tensor, module) in tensors
    }
    return form.dequantize(QuantizedLinear(tensors=stored))


def smoothing(amax: Floats, column_amax: Floats, alpha: float) -> Floats:
    """Return s [in] = amax^alpha / column_amax^(1 - alpha): divide inputs, multiply weights.

    Source: SmoothQuant, arXiv 2211.10438, equation 4; bounds as NVIDIA/TensorRT-LLM 0.17
    tensorrt_llm/models/convert_utils.py smooth_gemm.
    """
    weights = np.maximum(column_amax.astype(np.float64), _SMALLEST)
    scale = amax.astype(np.float64) ** alpha / weights ** (1 - alpha)
    return np.maximum(scale, _SMALLEST).astype(np.float32)


def error_basis(rows: Floats) -> Floats:
    """Return B [min(S, in), in] with B^T B = rows^T rows: products with it have the same norms."""
    if rows.shape[0] <= rows.shape[1]:
        return rows
    return np.asarray(np.linalg.qr(rows, mode="r"), dtype=np.float32)


def output_error(difference: Floats, basis: Floats) -> float:
    """Return the squared norm of what `difference` [out, in] changes in the outputs."""
    return float(np.square(difference @ basis.T, dtype=np.float64).sum())
