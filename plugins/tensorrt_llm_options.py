"""Options of TensorRT-LLM's PluginConfig: those of every op, and those of none.

An op's own are in its `tensorrt_llm.py`. Fields and defaults are those of both forms of the class,
the dataclass (0.21 to 1.1) and the pydantic model (1.2).
Source: NVIDIA/TensorRT-LLM tensorrt_llm/plugin/plugin.py (PluginConfig, cli_plugin_args, validate)
before and after pull request 8277; tensorrt_llm/builder.py (build), for what needs which weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from llmc.plugins import PLUGINS, graph

Value = bool | int | float | str | None
Capabilities = tuple[int, ...]

DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "none")
"""What a plugin of several types takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    `values`: what it takes beside its default; `flag`: trtllm-build has it. `needs`: value → the
    quant_algos of which the weights must have one. It works from compute capability
    `min_capability` on, on `only` if that names some, and not on `refused`.
    """

    default: Value
    values: tuple[str, ...] = ()
    flag: bool = True
    needs: Mapping[Value, tuple[str, ...]] = field(default_factory=dict)
    min_capability: int | None = None
    only: Capabilities = ()
    refused: Capabilities = ()

    def runs_on(self, capability: int) -> bool:
        """Say whether GPUs of `capability`, as 89, have it."""
        if capability in self.refused or (self.only and capability not in self.only):
            return False
        return self.min_capability is None or capability >= self.min_capability

    def where(self) -> str:
        """Return the compute capabilities as text, empty where it works on all."""
        parts = [f"on {' and '.join(map(str, self.only))} only"] if self.only else []
        parts += [f"from {self.min_capability}"] if self.min_capability is not None else []
        parts += [f"not on {' and '.join(map(str, self.refused))}"] if self.refused else []
        return ", ".join(parts)


NETWORK_OPTIONS: dict[str, Option] = {
    "dtype": Option(default="float16", flag=False),
    "remove_input_padding": Option(default=True),
    "multiple_profiles": Option(default=False),
    # fast_build is its name on the command line.
    "manage_weights": Option(default=False, flag=False),
    "identity_plugin": Option(default=None, values=DTYPES, flag=False),
    "bert_attention_plugin": Option(default="auto", values=DTYPES),
    "bert_context_fmha_fp32_acc": Option(default=False, refused=(100,)),
    "mamba_conv1d_plugin": Option(default="auto", values=DTYPES),
    "paged_state": Option(default=True),
    "lora_plugin": Option(default=None, values=DTYPES),
    "dora_plugin": Option(default=False),
}
"""Options of the whole network, of encoders, Mamba and adapters: of no op of ours."""


def op_options(op: str) -> dict[str, Option]:
    """Return the options of the op called `op`; TensorRT-LLM leaves it no choice in some."""
    if find_spec(f"llmc.plugins.{PLUGINS[op]}.tensorrt_llm") is None:
        return {}
    found: dict[str, Option] = graph.part(op, "tensorrt_llm").OPTIONS
    return found


def plugin_options() -> dict[str, Option]:
    """Return all of PluginConfig. Ops that share an option import it from one another."""
    found = dict(NETWORK_OPTIONS)
    for op in PLUGINS:
        for name, option in op_options(op).items():
            assert found.setdefault(name, option) is option, f"{op}: {name} is another's, too"
    return found
