"""What a recipe makes of an engine: its Triton repository, for the commands that write one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmc.recipes.schema import Recipe


def write_repository(
    recipe: "Recipe", engine_dir: Path, output: Path, *, tokenizer_dir: Path | None = None
) -> None:
    """Write the repository of an engine, or of a checkpoint for TensorRT-LLM's LLM API."""
    from llmc.model_repo.emit import emit_repository
    from llmc.model_repo.emit_llmapi import emit_llmapi_repository, is_checkpoint
    from llmc.model_repo.llmapi import Parallelism
    from llmc.model_repo.options import RepositoryOptions

    options = RepositoryOptions(**recipe.serve.model_dump())
    if not is_checkpoint(engine_dir):
        emit_repository(engine_dir, output, options, tokenizer_dir=tokenizer_dir)
        return
    split, build = recipe.mapping, recipe.build
    parallelism = Parallelism(
        tp=split.tp,
        pp=split.pp,
        moe_tp=split.moe_tp,
        moe_ep=split.moe_ep,
        max_batch_size=build.max_batch_size,
        max_num_tokens=build.max_num_tokens,
        max_seq_len=build.max_seq_len,
    )
    emit_llmapi_repository(engine_dir, output, options, parallelism, tokenizer_dir=tokenizer_dir)


def part_that_matters(recipe: "Recipe", engine_dir: Path) -> dict[str, Any]:
    """Return the fields that a repository is made from; an engine knows its split and limits."""
    from llmc.model_repo.emit_llmapi import is_checkpoint

    serve = recipe.serve.model_dump(mode="json")
    if not is_checkpoint(engine_dir):
        return serve
    split = {"mapping": recipe.mapping.model_dump(mode="json")}
    return serve | split | {"build": recipe.build.model_dump(mode="json")}
