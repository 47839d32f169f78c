"""What an engine can be built for: one module per target, named in `llmc.targets.TARGETS`.

A target exports `unsupported(config, limits, options) -> list[str]`, every reason it cannot build
this checkpoint, and `build(source, output_dir, *, limits, options, progress)`, which writes
config.json and the engine files of every rank and returns what it measured. `options` is the
target's variant of the recipe, `source` a Checkpoint; of a target that exports
`needs_weights(options)` and answers no, its CheckpointConfig alone. A target that only some
machines can build for exports `check_host(options)`, which raises ToolchainError on another.

A target whose engines may be built elsewhere has `hand_over(checkpoint, output_dir, *, limits,
options)`, which writes the job that builds them, `hands_over(options)`, which says when, and
`job_id(job_dir)`, which returns what the job stamps its engines with.
`toolchain()` returns what engines built here depend on beside llmc. One whose checkpoints are not
always split has `splits_checkpoint(options)`. READS_KERNEL_CHOICES says that a target reads those
of the limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["BuildLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """TensorRT-LLM's build_config limits. `kv_cache_dtype` None: the model's dtype.

    `kernel_choices` are what the recipe says of PluginConfig's other options, by name; empty for a
    target that does not read them.
    """

    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    max_seq_len: int
    tokens_per_block: int
    kv_cache_dtype: str | None = None
    kernel_choices: Mapping[str, bool | str] = field(default_factory=dict)
