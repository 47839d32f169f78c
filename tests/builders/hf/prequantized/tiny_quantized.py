"""Tiny Hugging Face models as each quantizing library writes them, and the weights they stand for.

Everything is packed here by the libraries' published rules, number by number, not by llmc's code.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from llmc.builders.convert import convert
from llmc.checkpoint import Checkpoint, Quantization, layer_linears
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.quant.format import QuantizedLinear, decode
from llmc.quant.layouts import restore
from tests.builders.hf_models import tensor_shapes, tiny_config, tiny_tensors, write_tiny

Array = npt.NDArray[Any]
Tensors = dict[str, Array]
Quantize = Callable[[np.random.Generator, int, int, str], tuple[Tensors, Array]]
"""Generator, out, in, name → the module's tensors by suffix and the weight they stand for."""

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 128,
    "vocab_size": 40,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float16",
}
LAYER = "model.layers.0."
MODULES = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}


def make(
    quantize: Quantize, settings: dict[str, Any], *, plain: tuple[str, ...] = (), **sizes: Any
) -> tuple[dict[str, Any], Tensors, Tensors]:
    """Return config.json, the tensors of a model quantized so, and its weights as float32."""
    config = tiny_config(**{**SIZES, **sizes}, quantization_config=deepcopy(settings))
    tensors: Tensors = tiny_tensors(config, "float16")
    weights: Tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    generator = np.random.default_rng(7)
    for name, (num_out, *rest) in tensor_shapes(config).items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj") or module in plain:
            continue
        del tensors[name]
        made, weights[name] = quantize(generator, num_out, rest[0], module)
        tensors |= {f"{module}.{suffix}": value for suffix, value in made.items()}
    return config, tensors, weights


def run(directory: Path, config: dict[str, Any], tensors: Tensors, **choices: Any) -> Checkpoint:
    """Write the model into `directory`, convert it and open the checkpoint."""
    model_dir = write_tiny(directory / "model", config, tensors)
    (directory / "out").mkdir()
    defaults: dict[str, Any] = {
        "dtype": None,
        "mapping": Mapping(),
        "quantization": Quantization(),
        "progress": NullProgress(),
        "workers": 2,
    }
    convert(model_dir, directory / "out", **{**defaults, **choices})
    return Checkpoint.open(directory / "out")


def stored(checkpoint: Checkpoint, module: str) -> Tensors:
    """Return the tensors by role of a module of layer 0, of an unsplit checkpoint."""
    names = checkpoint.config.linear_tensors(f"transformer.layers.0.{module}")
    file = checkpoint.rank(0)
    return {role: file.read(name) for role, name in names.items()}


def restored(checkpoint: Checkpoint) -> Iterator[tuple[str, Array]]:
    """Yield every module of layer 0 and the weight its tensors stand for."""
    config = checkpoint.config
    for linear in layer_linears(config.arch, 0):
        module = linear.name.removeprefix("transformer.layers.0.")
        tensors = stored(checkpoint, module)
        form = config.stored_format(linear.name)
        if form is None:
            yield module, tensors["weight"].astype(np.float32)
            continue
        if config.layout is not None and form.needs_layout:
            plain = restore(tensors["weight"], config.layout, bits=form.weight_bits)
            tensors["weight"] = plain
        yield module, decode(form.unpack(QuantizedLinear(tensors=tensors)))


def wanted(weights: Tensors, module: str) -> Array:
    """Return a module's rows as the model's own library restores them."""
    return np.concatenate([weights[f"{LAYER}{part}.weight"] for part in MODULES[module]])


def pack_int32(codes: Array, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)) -> Array:
    """Return codes 0..15 [rows, columns] packed along columns; place i has column order[i]."""
    packed = np.zeros((codes.shape[0], -(-codes.shape[1] // 8)), np.uint32)
    for word in range(packed.shape[1]):
        for place, column in enumerate(order):
            if 8 * word + column < codes.shape[1]:
                code = codes[:, 8 * word + column].astype(np.uint32)
                packed[:, word] |= code << np.uint32(4 * place)
    return packed.view(np.int32)


def int4(
    generator: np.random.Generator, num_out: int, num_in: int, group: int, *, symmetric: bool
) -> tuple[Array, Array, Array, Array]:
    """Return codes [out, in], scales float16 and zero points [out, groups], and the weight.

    Scales are powers of two when there are zero points: then their products are exact in float16.
    """
    groups = num_in // group
    codes = generator.integers(0, 16, (num_out, num_in), dtype=np.uint8)
    if symmetric:
        scale = generator.uniform(0.002, 0.01, (num_out, groups)).astype(np.float16)
        zero = np.full((num_out, groups), 8, np.uint8)
    else:
        scale = (2.0 ** generator.integers(-9, -6, (num_out, groups))).astype(np.float16)
        zero = generator.integers(1, 16, (num_out, groups), dtype=np.uint8)
    difference = codes.astype(np.float32) - np.repeat(zero.astype(np.float32), group, axis=1)
    return codes, scale, zero, difference * np.repeat(scale.astype(np.float32), group, axis=1)


def e4m3(generator: np.random.Generator, num_out: int, num_in: int) -> Array:
    """Return random finite e4m3 numbers of middling size."""
    values: Array = (100 * generator.standard_normal((num_out, num_in))).clip(-448, 448)
    return values.astype(E4M3)
