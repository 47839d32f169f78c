"""The target `tensorrt-llm`: engines of TensorRT-LLM, in the dialect of the version one runs.

`versions` says what each supported line is made of, `checkpoint_fields` what its config.json has,
`quantizations` which formats it runs on which GPU, `build_options` what trtllm-build takes,
`checks` and `memory` what it would refuse, `command` and `jobs` how the engine is built elsewhere.
"""

from llmc.builders.targets.tensorrt_llm.target import hand_over, unsupported

READS_KERNEL_CHOICES = True

__all__ = ["READS_KERNEL_CHOICES", "hand_over", "unsupported"]
