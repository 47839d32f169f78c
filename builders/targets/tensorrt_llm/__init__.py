"""The target `tensorrt-llm`: engines of TensorRT-LLM, in the dialect of the version one runs.

`checkpoint_fields` says what the config.json of a version has (llmc.tensorrt_llm_versions),
`quantizations` which formats it runs on which GPU, `build_options` what trtllm-build takes,
`checks` and `memory` what it would refuse. `local_build` builds the engine where the GPU is, by the
calls of `tensorrt_llm_api` with what `build_config` says; `command` and `jobs` do it elsewhere.
From 1.3 on there is none: `pytorch_dialect` says what the PyTorch backend serves, `pytorch_formats`
how it reads each quantization, `pytorch_layout` which Hugging Face tensors there are, and
`pytorch_export` and `pytorch_settings` write them.
"""

from llmc.builders.targets.tensorrt_llm.jobs import job_id
from llmc.builders.targets.tensorrt_llm.local_build import toolchain
from llmc.builders.targets.tensorrt_llm.target import (
    build,
    check_host,
    hand_over,
    hands_over,
    splits_checkpoint,
    unsupported,
)

READS_KERNEL_CHOICES = True

__all__ = [
    "READS_KERNEL_CHOICES",
    "build",
    "check_host",
    "hand_over",
    "hands_over",
    "job_id",
    "splits_checkpoint",
    "toolchain",
    "unsupported",
]
