"""The CPU target: walks the network once per rank, lowers each op and writes rank<N>.engine.

The file runs on every CPU the kernels know; which instruction set is used is decided on loading.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

import llmc
from llmc import artifacts
from llmc.builders.network import build_network
from llmc.builders.targets import BuildLimits
from llmc.builders.targets.cpu_fusion import fuse
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.errors import CheckpointError, UnsupportedError
from llmc.log import NullProgress, Progress
from llmc.plugins import graph
from llmc.plugins.cpu_file import EngineFileWriter
from llmc.plugins.cpu_program import CpuOp, KvShape, Program, Rows, Value
from llmc.plugins.graph import Network, OpCall
from llmc.plugins.rope import length_dependence
from llmc.recipes.schema import CpuTarget
from llmc.weights import SafetensorsFile

log = logging.getLogger(__name__)

KV_DTYPES = ("float32", "float16", "bfloat16")
QUANTIZED_KV_DTYPES = {"INT8": "int8", "FP8": "float8_e4m3fn"}
"""kv_cache_quant_algo → element type of the KV pool."""
MIN_PROCESS_BYTES = 64 << 20
"""Weights of a rank below which starting a process takes longer than packing them."""
PEAK_TENSORS = 6
"""Sizes of the largest tensor (of 2 bytes an element) that a rank's packing takes at its peak."""
BASE_BYTES = 100 << 20
"""Of a process that has numpy and llmc loaded."""
BLOCK_MULTIPLE = 32
"""Keys are stored in panels of 32 tokens (plugins/csrc/kv_cache.h)."""


def unsupported(
    config: CheckpointConfig, limits: BuildLimits, options: CpuTarget | None = None
) -> list[str]:
    """Return every reason this target cannot build such a checkpoint within such limits."""
    reasons = []
    if limits.tokens_per_block % BLOCK_MULTIPLE:
        reasons.append(
            f"tokens_per_block: {limits.tokens_per_block}, the cpu target needs a multiple of"
            f" {BLOCK_MULTIPLE}"
        )
    if limits.kv_cache_dtype not in (None, *KV_DTYPES):
        reasons.append(
            f"kv_cache_dtype: {limits.kv_cache_dtype!r}, the cpu target has {', '.join(KV_DTYPES)}"
        )
    kv_algo = config.quantization.kv_cache_quant_algo
    if kv_algo is not None and kv_algo not in QUANTIZED_KV_DTYPES:
        known = ", ".join(QUANTIZED_KV_DTYPES)
        reasons.append(f"kv_cache_quant_algo: {kv_algo!r}, the cpu target has {known}")
    if kv_algo is not None and limits.kv_cache_dtype is not None:
        reasons.append(
            f"kv_cache_dtype: {limits.kv_cache_dtype!r}, the checkpoint has a KV cache of {kv_algo}"
        )
    try:
        networks = [build_network(config, rank) for rank in range(config.num_rank_files)]
    except UnsupportedError as error:
        return [*reasons, *(error.reasons or (error.message,))]
    for network in networks:
        for call in network.ops:
            reasons += _call_reasons(call)
            if call.plugin == "position_embedding":
                reasons += _too_long(call, limits)
    return list(dict.fromkeys(reasons))


def _too_long(call: OpCall, limits: BuildLimits) -> list[str]:
    positions = call.attrs["num_positions"]
    assert isinstance(positions, int)
    if limits.max_seq_len <= positions:
        return []
    return [f"max_seq_len: {limits.max_seq_len}, the model has {positions} learned positions"]


def _call_reasons(call: OpCall) -> list[str]:
    try:
        module = graph.part(call.plugin, "cpu")
    except ModuleNotFoundError:
        return [f"{call.name}: plugin {call.plugin!r} has no cpu lowering"]
    reasons: list[str] = module.unsupported(call)
    return reasons


def build(
    checkpoint: Checkpoint,
    output_dir: Path,
    *,
    limits: BuildLimits,
    options: CpuTarget | None = None,
    progress: Progress,
) -> None:
    """Write config.json and every rank's engine into the existing directory `output_dir`.

    Ranks are built in processes, as many at a time as there are cores and memory for. Peak memory
    of each, beyond the files, is about three times the largest linear layer.
    Raises: UnsupportedError with all reasons of `unsupported`.
    """
    config = checkpoint.config
    reasons = unsupported(config, limits)
    if reasons:
        raise UnsupportedError(f"{checkpoint.directory}: not for the cpu target", reasons)
    ranks = range(config.num_rank_files)
    total = sum(info.num_bytes for rank in ranks for info in checkpoint.rank(rank).infos.values())
    progress.start("pack weights", total)
    build_id = _identify(checkpoint, limits)
    workers = num_workers(checkpoint)
    if workers == 1:
        for rank in ranks:
            _build_rank(checkpoint, output_dir, rank, limits, build_id, progress)
    else:
        log.info("%d ranks, %d at a time", len(ranks), workers)
        _build_in_processes(checkpoint, output_dir, limits, build_id, workers, progress)
    progress.finish()
    written = engine_config(config, limits)
    written["llmc"]["build"] = build_id
    text = json.dumps(written, indent=4)
    (output_dir / "config.json").write_text(text + "\n", encoding="utf-8")


def num_workers(checkpoint: Checkpoint) -> int:
    """Return how many ranks are built at a time: what cores and memory allow, if it is worth it."""
    ranks = range(checkpoint.config.num_rank_files)
    infos = [list(checkpoint.rank(rank).infos.values()) for rank in ranks]
    if sum(info.num_bytes for info in infos[0]) < MIN_PROCESS_BYTES:
        return 1
    largest = max(info.num_bytes for rank in infos for info in rank)
    fitting = psutil.virtual_memory().available // (PEAK_TENSORS * largest + BASE_BYTES)
    return max(1, min(len(ranks), len(os.sched_getaffinity(0)), fitting))


def _build_in_processes(
    checkpoint: Checkpoint,
    output_dir: Path,
    limits: BuildLimits,
    build_id: str,
    workers: int,
    progress: Progress,
) -> None:
    """Build each rank in a process; progress moves by whole ranks."""
    directory = checkpoint.directory
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {
            pool.submit(_build_rank_alone, directory, output_dir, rank, limits, build_id): rank
            for rank in range(checkpoint.config.num_rank_files)
        }
        for job in as_completed(jobs):
            job.result()
            infos = checkpoint.rank(jobs[job]).infos
            progress.advance(sum(info.num_bytes for info in infos.values()))


def _build_rank_alone(
    directory: Path, output_dir: Path, rank: int, limits: BuildLimits, build_id: str
) -> None:
    """Build one rank in a process of its own, which opens the checkpoint itself."""
    _build_rank(Checkpoint.open(directory), output_dir, rank, limits, build_id, NullProgress())


def _build_rank(
    checkpoint: Checkpoint,
    output_dir: Path,
    rank: int,
    limits: BuildLimits,
    build_id: str,
    progress: Progress,
) -> None:
    """Lower one rank's network and write its engine."""
    config = checkpoint.config
    network = fuse(build_network(config, rank))
    with EngineFileWriter(output_dir / f"rank{rank}.engine") as file:
        lowering = RankLowering(
            limits=limits,
            dtype=config.dtype,
            kv_dtype=kv_dtype(config, limits),
            weights=checkpoint.rank(rank),
            file=file,
            progress=progress,
        )
        file.finish(_lower(network, lowering, config, limits), rank=rank, build=build_id)


def _identify(checkpoint: Checkpoint, limits: BuildLimits) -> str:
    """Name a build by all that goes into it, so that its ranks know each other."""
    try:
        content = artifacts.read_manifest(checkpoint.directory).content_digest
    except CheckpointError:  # a checkpoint from elsewhere has none
        content = artifacts.digest_tree(checkpoint.directory)
    parts = json.dumps([llmc.__version__, content, asdict(limits)], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def kv_dtype(config: CheckpointConfig, limits: BuildLimits) -> str:
    """Return the element type of the KV pool: the checkpoint's, else the one asked for."""
    algo = config.quantization.kv_cache_quant_algo
    return QUANTIZED_KV_DTYPES[algo] if algo else limits.kv_cache_dtype or config.dtype


def engine_config(config: CheckpointConfig, limits: BuildLimits) -> dict[str, Any]:
    """Return the engine's config.json, in TensorRT-LLM's layout with one key of ours."""
    build_config: dict[str, Any] = {
        name: value
        for name, value in asdict(limits).items()
        if name not in ("tokens_per_block", "kv_cache_dtype", "kernel_choices")
    }
    build_config["plugin_config"] = {
        "tokens_per_block": limits.tokens_per_block,
        "paged_kv_cache": True,
        "remove_input_padding": True,
    }
    return {
        "version": llmc.__version__,
        "pretrained_config": config.to_json(),
        "build_config": build_config,
        "llmc": {"target": "cpu", "kv_cache_dtype": kv_dtype(config, limits)},
    }


@dataclass(slots=True, kw_only=True)
class RankLowering:
    """What the plugins see while one rank is lowered (plugins.cpu_lowering.Lowering)."""

    limits: BuildLimits
    dtype: str
    kv_dtype: str
    weights: SafetensorsFile
    file: EngineFileWriter
    progress: Progress
    values: dict[str, Value] = field(default_factory=dict)

    @property
    def max_seq_len(self) -> int:
        return self.limits.max_seq_len

    @property
    def tokens_per_block(self) -> int:
        return self.limits.tokens_per_block

    def read(self, names: tuple[str, ...]) -> npt.NDArray[Any]:
        parts = []
        for name in names:
            info = self.weights.infos[name]
            scalar = not info.shape
            weights = self.weights
            parts.append(
                weights.read(name) if scalar else weights.read_rows(name, 0, info.shape[0])
            )
            self.progress.advance(info.num_bytes)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def read_part(self, name: str, index: int) -> npt.NDArray[Any]:
        part: npt.NDArray[Any] = self.weights.read_rows(name, index, index + 1)[0]
        self.progress.advance(part.nbytes)
        return part

    def write(self, name: str, array: npt.NDArray[Any], *, resident: bool = True) -> str:
        if name not in self.file.tensors:
            self.file.write(name, array, resident=resident)
        return name

    def write_parts(self, name: str, count: int, parts: Iterable[npt.NDArray[Any]]) -> str:
        self.file.write_parts(name, count, parts)
        return name

    def add_value(self, name: str, rows: Rows, columns: int) -> None:
        assert name not in self.values, name
        self.values[name] = Value(rows=rows, columns=columns)

    def rows(self, value: str) -> Rows:
        return self.values[value].rows


def _lower(
    network: Network, lowering: RankLowering, config: CheckpointConfig, limits: BuildLimits
) -> Program:
    ops: list[CpuOp] = []
    for call in network.ops:
        ops += graph.part(call.plugin, "cpu").lower(call, lowering)
    return Program(
        ops=tuple(ops),
        values=lowering.values,
        output=network.outputs[0] if network.outputs else None,
        kv=kv_shape(network.ops, tokens_per_block=limits.tokens_per_block, dtype=lowering.kv_dtype),
        limits={
            "max_batch_size": limits.max_batch_size,
            "max_num_tokens": limits.max_num_tokens,
            "max_input_len": limits.max_input_len,
            "max_seq_len": limits.max_seq_len,
            "vocab_size": config.arch.vocab_size,
            **_prompt_limits(network),
        },
    )


def kv_shape(ops: Sequence[OpCall], *, tokens_per_block: int, dtype: str) -> KvShape:
    """Return the KV pool that the attention calls among `ops` need."""
    layers = [call.attrs for call in ops if call.plugin == "attention"]
    kv_heads, head_size = layers[0]["num_kv_heads"], layers[0]["head_size"]
    assert isinstance(kv_heads, int) and isinstance(head_size, int)
    return KvShape(
        num_layers=len(layers),
        num_kv_heads=kv_heads,
        head_size=head_size,
        tokens_per_block=tokens_per_block,
        dtype=dtype,
    )


def _prompt_limits(network: Network) -> dict[str, int]:
    """Return what of EngineLimits says which prompts have keys of their own."""
    for call in network.ops:
        if call.plugin != "attention" or call.attrs["rope_style"] == "none":
            continue
        attrs: dict[str, Any] = call.attrs
        changes = length_dependence(attrs["rotary_scaling"], attrs["max_position_embeddings"])
        if changes is not None:
            return {"long_prompt": changes.original, "each_long_prompt": int(changes.each)}
    return {}
