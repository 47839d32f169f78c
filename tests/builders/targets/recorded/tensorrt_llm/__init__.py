"""A recorder with the signatures of TensorRT-LLM's Python API: it builds nothing.

What the functions are told is written where the real ones write engines. Signatures are those of
NVIDIA/TensorRT-LLM 65f1d153 (1.2): tensorrt_llm/commands/build.py (build_and_save),
commands/refit.py (refit), builder.py (BuildConfig, EngineConfig), plugin/plugin.py (PluginConfig),
models/modeling_utils.py (PretrainedConfig). One file is every module of it.
"""

import json
import os
import sys
from argparse import Namespace
from enum import Enum
from pathlib import Path
from typing import Any

__version__ = "1.2.1"

for _name in ("bindings", "builder", "commands", "models", "plugin"):
    sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]
for _name in ("build", "refit"):
    sys.modules[f"{__name__}.commands.{_name}"] = sys.modules[__name__]

print("TensorRT-LLM prints on stdout")


class KVCacheType(Enum):
    CONTINUOUS = 0
    PAGED = 1
    DISABLED = 2


class PluginConfig:
    def __init__(self, words: dict[str, Any]) -> None:
        self.words = words
        self.validated = False

    @classmethod
    def from_arguments(cls, args: Namespace) -> "PluginConfig":
        return cls(vars(args))

    def validate(self) -> None:
        self.validated = True


class BuildConfig:
    def __init__(self, settings: dict[str, Any], plugin_config: PluginConfig) -> None:
        self.settings = settings
        self.plugin_config = plugin_config
        self.kv_cache_type: KVCacheType | None = None

    @classmethod
    def from_dict(cls, config: dict[str, Any], plugin_config: Any = None) -> "BuildConfig":
        return cls(dict(config), plugin_config)

    def update_from_dict(self, config: dict[str, Any]) -> None:
        for name, value in config.items():
            if not hasattr(self, name):
                raise AttributeError(f"{self.__class__} object has no attribute {name}")
            setattr(self, name, value)


class PretrainedConfig:
    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.architecture = data["architecture"]

    @classmethod
    def from_json_file(cls, config_file: str) -> "PretrainedConfig":
        return cls(json.loads(Path(config_file).read_text(encoding="utf-8")))


class EngineConfig:
    def __init__(self, pretrained_config: PretrainedConfig) -> None:
        self.pretrained_config = pretrained_config

    @classmethod
    def from_json_file(cls, config_file: str) -> "EngineConfig":
        data = json.loads(Path(config_file).read_text(encoding="utf-8"))
        return cls(PretrainedConfig(data["pretrained_config"]))


class _Tensor:
    def __init__(self, is_there: bool) -> None:
        self._is_there = is_there

    def is_inited(self) -> bool:
        return self._is_there


class _Model:
    @classmethod
    def from_config(cls, config: PretrainedConfig) -> "_Model":
        return cls()

    def named_parameters(self) -> list[tuple[str, _Tensor]]:
        return [("lm_head.weight", _Tensor(False)), ("rotary_inv_freq", _Tensor(True))]


MODEL_MAP = {"LlamaForCausalLM": _Model}


def build_and_save(
    rank: int,
    gpu_id: int,
    ckpt_dir: str,
    build_config: BuildConfig,
    output_dir: str,
    log_level: str,
    model_config: PretrainedConfig,
    model_cls: Any,
    **kwargs: Any,
) -> bool:
    if "RECORDER_RAISES" in os.environ:
        raise RuntimeError(os.environ["RECORDER_RAISES"])
    if "RECORDER_DIES" in os.environ:
        os._exit(139)
    told = {
        "process": os.getpid(),
        "rank": rank,
        "gpu_id": gpu_id,
        "ckpt_dir": ckpt_dir,
        "settings": build_config.settings,
        "kv_cache_type": build_config.kv_cache_type and build_config.kv_cache_type.name,
        "plugins": build_config.plugin_config.words,
        "validated": build_config.plugin_config.validated,
        "architecture": model_config.architecture,
        "model_cls": model_cls,
        "kwargs": kwargs,
    }
    output = Path(output_dir)
    (output / f"rank{rank}.engine").write_text(json.dumps(told), encoding="utf-8")
    if rank == 0:
        config = {
            "version": __version__,
            "pretrained_config": model_config.data,
            "build_config": {
                **build_config.settings,
                "use_strip_plan": kwargs["strip_plan"],
                "plugin_config": build_config.plugin_config.words,
            },
        }
        (output / "config.json").write_text(json.dumps(config), encoding="utf-8")
        Path(build_config.settings["output_timing_cache"]).write_bytes(b"timings")
    return True


def refit(
    engine_dir: str,
    checkpoint_dir: str,
    engine_config: EngineConfig,
    output_dir: str,
    fixed_weights_names: list[str],
) -> None:
    output = Path(output_dir)
    config = (Path(engine_dir) / "config.json").read_bytes()
    (output / "config.json").write_bytes(config)
    for path in Path(engine_dir).glob("*.engine"):
        told = {"checkpoint_dir": checkpoint_dir, "fixed_weights_names": fixed_weights_names}
        (output / path.name).write_text(json.dumps(told), encoding="utf-8")
