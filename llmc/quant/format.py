"""What every quantization format states about itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt


class Quantize(Protocol):
    """Turn weight [out, in] into (stored values, scales); `dtype` is the model's."""

    def __call__(
        self, weight: npt.NDArray[Any], *, dtype: str = ...
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantFormat:
    """One format.

    `algo` is TensorRT-LLM's quant_algo. `granularity` says what shares one scale. `in_checkpoint`
    is "plain" when the checkpoint keeps weights in the model's dtype and each target quantizes them
    at build, "quantized" when it keeps the stored values.
    """

    algo: str
    granularity: Literal["per_channel", "per_group", "per_tensor"]
    needs_calibration: bool
    in_checkpoint: Literal["plain", "quantized"]
    quantize: Quantize
    dequantize: Callable[[npt.NDArray[Any], npt.NDArray[np.float32]], npt.NDArray[np.float32]]
