"""What an engine can be built for: one module per target, named in `llmc.targets.TARGETS`.

A target exports `unsupported(config, limits, options) -> list[str]`, every reason it cannot build
this checkpoint, and `build(source, output_dir, *, limits, options, progress)`, which writes
config.json and the engine files of every rank and returns what it measured. `options` is the
target's variant of the recipe, `source` a Checkpoint; of a target that exports
`needs_weights(options)` and answers no, its CheckpointConfig alone. A target whose engines are
built elsewhere has `hand_over(checkpoint, output_dir, *, limits, options)` for `build`, which
writes the job that builds them.
"""

from dataclasses import dataclass

__all__ = ["BuildLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildLimits:
    """TensorRT-LLM's build_config limits. `kv_cache_dtype` None: the model's dtype."""

    max_batch_size: int
    max_num_tokens: int
    max_input_len: int
    max_seq_len: int
    tokens_per_block: int
    kv_cache_dtype: str | None = None
