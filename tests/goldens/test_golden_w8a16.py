"""W8A16 numbers against NVIDIA's weight-only quantizer.

The stored checkpoint was written without a GPU, for which 0.17 writes the plain transpose (as for
compute capability 9.0): its bytes, [in, out] in column-major order, are ours, [out, in] in
row-major order.
"""

import numpy as np
import pytest

from llmc.builders.families.family import load_family
from llmc.checkpoint import CheckpointConfig, TensorSpec, tensor_specs
from llmc.dtypes import numpy_dtype
from llmc.quant import w8a16
from tests.goldens import golden

WANTED = golden.load_checkpoint("llama-quant-int8_wo")
CONFIG = CheckpointConfig.from_json(WANTED["config"])
LINEARS = [
    spec
    for spec in tensor_specs(CONFIG, 0)
    if CONFIG.quantization.quantizes(spec.name.removesuffix(".weight")) and len(spec.shape) == 2
]


def test_golden_names_the_same_modules_quantized() -> None:
    entries = WANTED["ranks"]["rank0.safetensors"]
    quantized = {name for name, entry in entries.items() if entry["dtype"] == "int8"}
    assert {spec.name for spec in LINEARS} == quantized


@pytest.mark.parametrize("spec", LINEARS, ids=lambda spec: spec.name)
def test_golden_w8a16_values_and_scales_are_equal(spec: TensorSpec) -> None:
    entries = WANTED["ranks"]["rank0.safetensors"]
    tensors = golden.model_tensors(WANTED["model"])
    sources = load_family(CONFIG.arch.architecture).sources(spec)
    weight = np.concatenate([tensors[name] for name in sources])

    values, scale = w8a16.quantize(weight, dtype=CONFIG.dtype)

    assert golden.sha256(values) == entries[spec.name]["sha256"]
    stored_scale = scale.astype(numpy_dtype(CONFIG.dtype))
    name = spec.name.removesuffix("weight") + "per_channel_scale"
    assert golden.sha256(stored_scale) == entries[name]["sha256"]
