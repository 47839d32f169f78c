"""The calls into TensorRT-LLM's Python API, each in a process of its own.

Nothing here decides anything: what is built is in the job. Source of the signatures:
NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (build_and_save), commands/refit.py (refit),
builder.py and plugin/plugin.py, 0.17 to 1.2.
"""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from llmc.builders.targets.tensorrt_llm.build_config import RankJob
from llmc.errors import ToolchainError

LOG_LEVEL = "info"


def import_tensorrt_llm() -> Any:
    """Return TensorRT-LLM's package. Raises: ToolchainError when it cannot be imported."""
    try:
        import tensorrt_llm
    except (ImportError, OSError) as error:
        raise ToolchainError(
            f"TensorRT-LLM cannot be imported: {error}",
            hint="run in its container, which `llmc targets` names, or pip install 'llmc[trtllm]'",
        ) from error
    return tensorrt_llm


def quiet_stdout() -> None:
    """Send what the library prints to stderr: stdout is llmc's result."""
    os.dup2(2, 1)


def build_rank(job: RankJob) -> dict[str, str]:
    """Build a rank's engine and save it; return the versions that did."""
    package = import_tensorrt_llm()
    import tensorrt
    from tensorrt_llm.bindings import KVCacheType
    from tensorrt_llm.builder import BuildConfig
    from tensorrt_llm.commands.build import build_and_save
    from tensorrt_llm.models import PretrainedConfig
    from tensorrt_llm.plugin import PluginConfig

    plugins = PluginConfig.from_arguments(Namespace(**job.plugins))
    plugins.validate()
    config = BuildConfig.from_dict(job.settings, plugin_config=plugins)
    # As text it is spelt in one way up to 1.1 and in another after; the member is the same.
    config.update_from_dict({"kv_cache_type": KVCacheType.PAGED})
    build_and_save(
        job.rank,
        job.gpu,
        job.checkpoint,
        config,
        job.output,
        LOG_LEVEL,
        PretrainedConfig.from_json_file(str(Path(job.checkpoint) / "config.json")),
        None,
        logits_dtype=None,
        **job.lora,
        strip_plan=job.strip_plan,
        refit=False,
    )
    return {"tensorrt_llm": str(package.__version__), "tensorrt": str(tensorrt.__version__)}


def refit_ranks(engine: str, checkpoint: str, output: str) -> None:
    """Write into `output` what `engine` is with the weights of `checkpoint`, every rank."""
    import_tensorrt_llm()
    from tensorrt_llm.builder import EngineConfig
    from tensorrt_llm.commands.refit import refit
    from tensorrt_llm.models import MODEL_MAP

    config = EngineConfig.from_json_file(str(Path(engine) / "config.json"))
    model = MODEL_MAP[config.pretrained_config.architecture].from_config(config.pretrained_config)
    # What the model computes by itself, as rotary tables: no checkpoint has it.
    constants = [name for name, tensor in model.named_parameters() if tensor.is_inited()]
    refit(
        engine_dir=engine,
        checkpoint_dir=checkpoint,
        engine_config=config,
        output_dir=output,
        fixed_weights_names=constants,
    )
