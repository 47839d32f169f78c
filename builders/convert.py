"""From a Hugging Face directory to a TensorRT-LLM checkpoint, quantized on the way if asked.

Memory does not grow with the model: plain tensors stream in pieces of a few MiB, calibration holds
one decoder layer. Every value is looked at on its way. What NVIDIA's converter writes but its
loader does not need (embed_positions*, rotary_inv_freq) is left out. Without a layout W8A16 and
W4A16 are written in their portable form: plain weights and the name of the format.
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from llmc.arch import ModelArch
from llmc.builders.families.family import unwritten_formats
from llmc.builders.hf.config import HF_CONFIG_NAME
from llmc.builders.hf.preflight import HfModel, examine
from llmc.builders.hf.prequantized import model as prequantized
from llmc.builders.hf.tokenizer_files import copy_files, warn_of_tokenizer
from llmc.builders.quantize.calibration import (
    Calibration,
    ReadWhole,
    calibrate,
    calibration_reasons,
    needs_calibration,
)
from llmc.builders.rank_files import write_rank_files
from llmc.checkpoint import (
    MIXED_PRECISION,
    CheckpointConfig,
    Quantization,
    forbidden,
    routing_specs,
    tensor_specs,
    unsplittable,
    write_config,
)
from llmc.dtypes import WEIGHT_DTYPES
from llmc.errors import CheckpointError, UnsupportedError
from llmc.log import Progress
from llmc.mapping import Mapping as RankMapping
from llmc.quant import FORMATS

log = logging.getLogger(__name__)

_MAX_REASONS = 20


def preflight(
    model_dir: Path,
    *,
    dtype: str | None,
    mapping: RankMapping,
    quantization: Quantization,
    use_parallel_embedding: bool = False,
    embedding_sharding_dim: int = 0,
    layout: str | None = None,
) -> list[str]:
    """Return every reason why `convert` with the same arguments would refuse.

    Headers are read, weights are not (but for two tensors that must be equal): what only the values
    can show, NaN and overflow, is found while converting.
    """
    with ExitStack() as stack:
        model, reasons = examine(model_dir)
        if model is not None:
            stack.callback(model.weights.close)
            config = CheckpointConfig(
                arch=model.arch,
                dtype=dtype or model.dtype,
                mapping=mapping,
                quantization=_sparing_routers(quantization, model.arch),
                use_parallel_embedding=use_parallel_embedding,
                embedding_sharding_dim=embedding_sharding_dim,
                layout=layout,
            )
            config, more = prequantized.adopt(config, model.prequantized)
            reasons += more + _choice_reasons(config, model, model_dir)
        return reasons


def convert(
    model_dir: Path,
    output_dir: Path,
    *,
    dtype: str | None,
    mapping: RankMapping,
    quantization: Quantization,
    use_parallel_embedding: bool = False,
    embedding_sharding_dim: int = 0,
    layout: str | None = None,
    calibration: Calibration | None = None,
    progress: Progress,
    workers: int,
) -> CheckpointConfig:
    """Write the checkpoint of `model_dir` into the existing, empty `output_dir`.

    `dtype` None keeps the model's. A model that is quantized already keeps its numbers, and
    `quantization` must ask for nothing else. `layout` permutes weight-only weights for one GPU
    generation. `calibration` is for quantizations that need one. `workers` threads work on tensors
    of all rank files at once; each takes about 48 MiB, or a whole weight where it is rounded or was
    quantized. On any failure every file written here is removed again.
    Raises: CheckpointError when the model is at fault, UnsupportedError when the choices are,
    BuildError when the disk is too small, RecipeError when the calibration text is at fault.
    """
    assert output_dir.is_dir() and workers > 0, (output_dir, workers)
    with ExitStack() as stack:
        model, reasons = examine(model_dir)
        if model is not None:
            stack.callback(model.weights.close)
        if model is None or reasons:
            raise CheckpointError(_listed(f"{model_dir}: cannot be converted", reasons))
        config = CheckpointConfig(
            arch=model.arch,
            dtype=dtype or model.dtype,
            mapping=mapping,
            quantization=_sparing_routers(quantization, model.arch),
            use_parallel_embedding=use_parallel_embedding,
            embedding_sharding_dim=embedding_sharding_dim,
            layout=layout,
        )
        config, reasons = prequantized.adopt(config, model.prequantized)
        reasons += _choice_reasons(config, model, model_dir)
        if reasons:
            raise UnsupportedError(f"{model_dir}: cannot be converted this way", reasons)
        if dtype is None:
            log.info("dtype: %s, as the model was saved", config.dtype)
        with _removing_on_failure(output_dir):
            finished: Mapping[str, ReadWhole] = {}
            if model.prequantized is not None:
                finished = prequantized.finished(model.prequantized, model.weights, config)
            elif needs_calibration(config):
                assert calibration is not None, config.quantization
                finished = calibrate(model, model_dir, config, calibration, progress)
            write_rank_files(
                model,
                config,
                finished,
                output_dir,
                progress=progress,
                workers=workers,
            )
            _write_beside(model_dir, model, output_dir)
            write_config(output_dir, config)
    return config


def _sparing_routers(quantization: Quantization, arch: ModelArch) -> Quantization:
    """Name what routes tokens among the modules left out, where modules are named at all.

    Nothing here quantizes it, but TensorRT-LLM would.
    """
    excluded = quantization.exclude_modules
    if excluded is None:
        return quantization
    routers = [
        spec.name.removesuffix(".weight")
        for layer in range(arch.num_hidden_layers)
        for spec in routing_specs(arch, layer)
        if spec.name.endswith(".weight")
    ]
    return replace(quantization, exclude_modules=(*routers, *excluded))


def _choice_reasons(config: CheckpointConfig, model: HfModel, model_dir: Path) -> list[str]:
    """Return what stands in the way of the chosen dtype, mapping and quantization."""
    reasons = []
    if config.dtype not in WEIGHT_DTYPES:
        reasons.append(f"dtype {config.dtype!r}, expected one of {', '.join(WEIGHT_DTYPES)}")
    if config.embedding_sharding_dim not in (0, 1):
        reasons.append(f"embedding_sharding_dim {config.embedding_sharding_dim}, expected 0 or 1")
    if config.quantization.quant_algo in (None, MIXED_PRECISION, *FORMATS):
        reasons += unsplittable(config)
        if model.prequantized is None:
            reasons += calibration_reasons(config, model_dir)
    else:  # `forbidden` names it; a format that is not known splits nothing
        reasons += unsplittable(replace(config, quantization=Quantization()))
    reasons += forbidden(config) + unwritten_formats(config)
    if not reasons:
        _warn_of_idle_patterns(config)
    return reasons


def _warn_of_idle_patterns(config: CheckpointConfig) -> None:
    whole = replace(config, mapping=RankMapping())
    modules = {spec.name.rpartition(".")[0] for spec in tensor_specs(whole, 0)}
    for pattern in config.quantization.exclude_modules or ():
        if not any(fnmatchcase(module, pattern) for module in modules):
            log.warning("exclude_modules: %r matches no module of this model", pattern)


def _listed(message: str, reasons: list[str]) -> str:
    shown = reasons[:_MAX_REASONS]
    if len(reasons) > len(shown):
        shown.append(f"and {len(reasons) - len(shown)} more")
    return "\n  - ".join([message, *shown])


@contextmanager
def _removing_on_failure(directory: Path) -> Iterator[None]:
    """Remove what the block wrote into `directory` when it fails."""
    before = set(directory.iterdir())
    try:
        yield
    except BaseException:
        for path in set(directory.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _write_beside(model_dir: Path, model: HfModel, output_dir: Path) -> None:
    """Copy config.json, tokenizer and generation settings; make up the last where absent."""
    warn_of_tokenizer(model_dir, num_rows=model.arch.vocab_size)
    copy_files(model_dir, output_dir)
    shutil.copyfile(model_dir / "config.json", output_dir / HF_CONFIG_NAME)
    target = output_dir / "generation_config.json"
    if not target.exists() and model.config.token_ids:
        log.info("generation_config.json: absent, token ids taken from config.json")
        target.write_text(json.dumps(model.config.token_ids, indent=2) + "\n", encoding="utf-8")
