"""Which quantization each line of TensorRT-LLM has, and on which GPUs.

Source: tensorrt_llm/quantization/mode.py of 0.17 and 1.x (QuantAlgo), the precisions of the support
matrix (FP8 from compute capability 8.9, NVFP4 from 10.0), the refusals of the weight loader on
10.x to 11.x (models/modeling_utils.py, 1.x), and the recipes that the PyTorch backend documents
(features/quantization.html, 1.3).
"""

from dataclasses import dataclass

from llmc.tensorrt_llm_versions import VERSIONS, lines_with

_ALL = tuple(VERSIONS)
_ENGINE = tuple(line for line, version in VERSIONS.items() if version.has_engines)

MIN_CAPABILITY = 80
"""The least compute capability TensorRT-LLM is tested on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Lines that have an algorithm, the least compute capability, and where it was taken out."""

    lines: tuple[str, ...]
    min_capability: int = MIN_CAPABILITY
    refused_from: int | None = None
    refused_below: int | None = None

    def runs_on(self, capability: int) -> bool:
        """Say whether GPUs of `capability`, as 89, have it."""
        start, end = self.refused_from, self.refused_below
        refused = start is not None and end is not None and start <= capability < end
        return capability >= self.min_capability and not refused

    def where(self) -> str:
        """Return the compute capabilities as text."""
        text = f"from {self.min_capability}"
        if self.refused_from is None:
            return text
        return f"{text} to {self.refused_from - 1} and from {self.refused_below}"


_INTEGER = Support(lines=_ENGINE, refused_from=100, refused_below=120)
_WEIGHT_ONLY = Support(lines=_ALL, refused_from=100, refused_below=120)
_INT4 = Support(lines=_ALL, refused_from=100, refused_below=120)

WEIGHTS: dict[str, Support] = {
    "W8A16": _WEIGHT_ONLY,
    "W4A16": _WEIGHT_ONLY,
    "W4A16_AWQ": _INT4,
    "W4A16_GPTQ": _INT4,
    "W4A8_AWQ": Support(lines=_ALL, min_capability=89, refused_from=100, refused_below=120),
    "W8A8_SQ_PER_CHANNEL": _INTEGER,
    "W8A8_SQ_PER_TENSOR_PLUGIN": _INTEGER,
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": _INTEGER,
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": _INTEGER,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _INTEGER,
    "FP8": Support(lines=_ALL, min_capability=89),
    "FP8_PER_CHANNEL_PER_TOKEN": Support(
        lines=_ALL, min_capability=89, refused_from=100, refused_below=120
    ),
    "NVFP4": Support(lines=_ALL, min_capability=100),
    "MIXED_PRECISION": Support(lines=_ALL),
}
"""quant_algo → where it runs."""

KV_CACHE: dict[str, Support] = {
    "INT8": _INTEGER,
    "FP8": Support(lines=_ALL, min_capability=89),
}
"""kv_cache_quant_algo → where it runs."""


def quantization_reasons(
    weights: frozenset[str], kv_cache: str | None, line: str, capability: int
) -> list[str]:
    """Return why TensorRT-LLM `line` on `capability` lacks one of the quantizations."""
    asked = [("quantization.algo", name, WEIGHTS) for name in sorted(weights)]
    if kv_cache is not None:
        asked.append(("quantization.kv_cache", kv_cache, KV_CACHE))
    reasons = []
    for field, name, table in asked:
        if name not in table:
            reasons.append(f"{field}: {name}, which no version of TensorRT-LLM has")
            continue
        support = table[name]
        if line not in support.lines:
            reasons.append(
                f"{field}: {name}, which TensorRT-LLM {line} does not have;"
                f" versions that do: {lines_with(support.lines)}; {line} has"
                f" {', '.join(other for other, one in table.items() if line in one.lines)}"
            )
        elif not support.runs_on(capability):
            reasons.append(
                f"{field}: {name}, which compute capability {capability} does not have;"
                f" it runs {support.where()}"
            )
    return reasons
