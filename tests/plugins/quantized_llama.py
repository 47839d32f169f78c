"""A tiny llama whose checkpoint is quantized, with scales from its own activations."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmc.checkpoint import Quantization, tensor_schema
from llmc.checkpoint.linears import layer_linears
from llmc.quant import layouts
from llmc.quant.format import Choice, load_format, tensor_name
from tests.plugins.quantized_linears import LAYOUT
from tests.plugins.tiny_llama import TinyLlama

KV_SCALES = {"INT8": 0.05, "FP8": 0.02}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLlama(TinyLlama):
    """A TinyLlama of float16 tensors; one rank."""

    input_amax: dict[str, npt.NDArray[np.float32]]

    @classmethod
    def make(cls, **changes: Any) -> "QuantizedLlama":
        sizes = {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "max_position_embeddings": 256,
            "initializer_range": 0.1,
        }
        tiny = TinyLlama.make(**sizes | changes)
        return cls(model=tiny.model, arch=tiny.arch, input_amax=_observe(tiny))

    def quantized_config(self, algo: str | None, kv: str | None = None) -> Any:
        form = load_format(algo) if algo else None
        size = min(form.group_sizes, default=None) if form else None
        return replace(
            self.config(),
            dtype="float16",
            quantization=Quantization.of(algo, kv, group_size=size),
            layout=LAYOUT if form and form.needs_layout else None,
        )

    def rank_tensors(self, config: Any, rank: int) -> dict[str, npt.NDArray[Any]]:
        assert rank == 0 and config.mapping.world_size == 1
        found = TinyLlama.rank_tensors(self, self.config(), 0)
        for layer in range(self.arch.num_hidden_layers):
            for linear in layer_linears(self.arch, layer):
                if config.quantization.quantizes(linear.name):
                    weight = found.pop(f"{linear.name}.weight")
                    found |= self._quantize(config, linear, weight)
        for name in tensor_schema(config, 0).keys() - found.keys():
            assert name.endswith("kv_cache_scaling_factor"), name
            scale = KV_SCALES[config.quantization.kv_cache_quant_algo]
            found[name] = np.array([scale], np.float32)
        return found

    def _quantize(
        self, config: Any, linear: Any, weight: npt.NDArray[np.float32]
    ) -> dict[str, npt.NDArray[Any]]:
        quantization = config.quantization
        form, amax = load_format(quantization.quant_algo), self.input_amax[linear.name]
        declared = form.tensors_of(linear.name)
        roles = {tensor.role for tensor in declared}
        spread = np.exp2(np.random.default_rng(5).uniform(-1, 1, amax.shape)).astype(np.float16)
        scale = spread.astype(np.float32)
        factor = scale if "prequant_scaling_factor" in roles else 1 / scale
        if not {"prequant_scaling_factor", "smoother"} & roles:
            factor = np.ones_like(scale)
        module = linear.name.rpartition(".")[2]
        choice = _choice(module, quantization.group_size, linear, amax * factor, scale, roles)
        tensors = form.quantize(weight / factor, choice).tensors
        if form.needs_layout:
            bits = form.weight_bits
            tensors["weight"] = layouts.arrange(tensors["weight"], config.layout, bits=bits)
        return {tensor_name(tensor, linear.name): tensors[tensor.role] for tensor in declared}


def _choice(
    module: str,
    group_size: int,
    linear: Any,
    amax: npt.NDArray[np.float32],
    scale: npt.NDArray[np.float32],
    roles: set[str],
) -> Choice:
    return Choice(
        module=module,
        dtype="float16",
        group_size=group_size,
        segments=tuple(part.length for part in linear.rows) if module == "qkv" else None,
        input_amax=float(amax.max()),
        output_amax=5.0,
        prequant=scale if "prequant_scaling_factor" in roles else None,
        smoother=scale if "smoother" in roles else None,
    )


def _observe(tiny: TinyLlama) -> dict[str, npt.NDArray[np.float32]]:
    """Return the largest magnitude of each input of each linear module, [in], over some tokens."""
    modules = {
        "self_attn.q_proj": ("attention.qkv",),
        "self_attn.o_proj": ("attention.dense",),
        "mlp.gate_proj": ("mlp.fc", "mlp.gate"),
        "mlp.down_proj": ("mlp.proj",),
    }
    found: dict[str, npt.NDArray[np.float32]] = {}

    def observer(names: list[str]) -> Any:
        def observe(_: Any, inputs: Any) -> None:
            found.update({name: inputs[0][0].abs().amax(dim=0).numpy() for name in names})

        return observe

    hooks = []
    for layer, block in enumerate(tiny.model.model.layers):
        for source, targets in modules.items():
            names = [f"transformer.layers.{layer}.{target}" for target in targets]
            module = block.get_submodule(source)
            hooks.append(module.register_forward_pre_hook(observer(names)))
    torch.manual_seed(2)
    tiny.logits(torch.randint(0, tiny.arch.vocab_size, (64,)).tolist())
    for hook in hooks:
        hook.remove()
    return found
