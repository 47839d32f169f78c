"""What each target does with each fused op: which quantizations, on which GPUs, by which options.

Asked of the lowerings themselves, with a call of the op from a small model of some family.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

from llmc.builders.families import FAMILIES
from llmc.builders.families.family import load_family
from llmc.builders.families.support import example
from llmc.builders.network import build_network
from llmc.builders.targets import tensorrt_capabilities as known
from llmc.builders.targets.cpu import QUANTIZED_KV_DTYPES
from llmc.builders.targets.tensorrt_llm.quantizations import KV_CACHE, WEIGHTS, Support
from llmc.checkpoint import CheckpointConfig
from llmc.plugins import PLUGINS, graph
from llmc.plugins.graph import Attr, OpCall
from llmc.plugins.moe.spec import QUANTS as EXPERTS
from llmc.plugins.tensorrt_llm_options import Option, op_options
from llmc.quant import FORMATS

_MAX_SEQ_LEN = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSupport:
    """One op on one target.

    `lowered`: the target runs it; None for TensorRT-LLM, whose networks are its own.
    `quantizations`: quant_algo of weights or cache → compute capabilities as text, empty on a CPU;
    an op with neither has none. `options`: what `build.plugins` may say of it.
    """

    op: str
    target: str
    lowered: bool | None
    quantizations: dict[str, str]
    options: dict[str, Option]


def plugin_support() -> list[OpSupport]:
    """Return every op on every target, op by op."""
    calls = _calls()
    return [
        one
        for op in PLUGINS
        for one in (
            _on_cpu(op, calls.get(op, {})),
            _on_tensorrt(op, calls.get(op, {}), "tensorrt-rtx", known.rtx_gpus_with),
            _on_tensorrt(op, calls.get(op, {}), "tensorrt", known.gpus_with),
            _on_tensorrt_llm(op),
        )
    ]


def _calls() -> dict[str, dict[str, OpCall]]:
    """Return, for every op that multiplies weights, a call with those of each quant_algo."""
    wanted = {op for op in PLUGINS if "quant" in graph.spec(op).attributes}
    stored: dict[str, Attr] = {"stored_quantized": True, "layout": "sm80"}
    found: dict[str, dict[str, OpCall]] = {}
    for architecture in FAMILIES:
        arch = load_family(architecture).arch(example(architecture))
        for call in build_network(CheckpointConfig(arch=arch, dtype="bfloat16"), 0).ops:
            if call.plugin in wanted - found.keys():
                found[call.plugin] = {
                    algo: replace(call, attrs={**call.attrs, **stored, "quant": algo})
                    for algo in FORMATS
                }
        if found.keys() == wanted:
            break
    return found


def _on_cpu(op: str, quantized: dict[str, OpCall]) -> OpSupport:
    algos = {}
    if _has(op, "cpu"):
        unsupported = graph.part(op, "cpu").unsupported
        algos = {algo: "" for algo, call in quantized.items() if not unsupported(call)}
        if graph.spec(op).uses_kv_cache:
            algos |= dict.fromkeys(QUANTIZED_KV_DTYPES, "")
    return OpSupport(op=op, target="cpu", lowered=_has(op, "cpu"), quantizations=algos, options={})


def _on_tensorrt(
    op: str, quantized: dict[str, OpCall], target: str, gpus: Callable[[str], list[int]]
) -> OpSupport:
    """`gpus` returns the compute capabilities that have a quant_algo."""
    algos = {}
    if _has(op, "tensorrt"):
        unsupported = graph.part(op, "tensorrt").unsupported
        for algo, call in quantized.items():
            found = [] if unsupported(call, _MAX_SEQ_LEN) else gpus(algo)
            if found:
                algos[algo] = ", ".join(map(str, found))
    return OpSupport(
        op=op, target=target, lowered=_has(op, "tensorrt"), quantizations=algos, options={}
    )


def _on_tensorrt_llm(op: str) -> OpSupport:
    spec = graph.spec(op)
    table: dict[str, Support] = {}
    if "quant" in spec.attributes:
        table = {name: one for name, one in WEIGHTS.items() if op != "moe" or name in EXPERTS}
    elif spec.uses_kv_cache:
        table = KV_CACHE
    return OpSupport(
        op=op,
        target="tensorrt-llm",
        lowered=None,
        quantizations={name: one.where() for name, one in table.items()},
        options=op_options(op),
    )


def _has(op: str, module: str) -> bool:
    return find_spec(f"llmc.plugins.{PLUGINS[op]}.{module}") is not None
