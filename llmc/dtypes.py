"""Tensor element types under one name each, with their numpy and safetensors spelling.

Names are those of TensorRT-LLM's config.json ("float16", "bfloat16", …). numpy lacks bfloat16 and
float8; ml_dtypes supplies them, on numpy 1.26 and 2.
"""

from typing import Any

import ml_dtypes
import numpy as np

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}

# Source: README of huggingface/safetensors, "dtype" of a header entry.
SAFETENSORS_NAMES: dict[str, str] = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F64": "float64",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}
SAFETENSORS_CODES: dict[str, str] = {name: code for code, name in SAFETENSORS_NAMES.items()}

WEIGHT_DTYPES = ("float32", "float16", "bfloat16")
"""What a checkpoint's unquantized tensors may be."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of `name`; asserts that the name is one of ours."""
    assert name in NUMPY_DTYPES, name
    return NUMPY_DTYPES[name]


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return our name of a numpy dtype."""
    for name, known in NUMPY_DTYPES.items():
        if known == dtype:
            return name
    raise AssertionError(f"no name for {dtype}")
