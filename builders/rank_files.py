"""Writes the rank files of a checkpoint, each tensor from where it comes.

Plain tensors stream from the Hugging Face weights in pieces of a few MiB; what calibration has
finished is cut to ranks; formats that need no calibration round each rank's part of a weight, as
NVIDIA's converter does.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.hf.preflight import HfModel
from llmc.builders.quantize.calibration import ReadWhole, settings_of
from llmc.builders.quantize.site import load_algorithm
from llmc.builders.quantize.source import TensorSource
from llmc.builders.slicing import Slice, copy_slice, slices
from llmc.checkpoint import (
    CheckpointConfig,
    Quantization,
    TensorSpec,
    file_mapping,
    layer_linears,
    lm_head,
    tensor_schema,
    tensor_specs,
)
from llmc.errors import BuildError
from llmc.log import Progress
from llmc.quant.layouts import arrange
from llmc.weights import SafetensorsWriter

log = logging.getLogger(__name__)

Task = Callable[[], None]
Advance = Callable[[int], None]


def write_rank_files(
    model: HfModel,
    config: CheckpointConfig,
    finished: Mapping[str, ReadWhole],
    output_dir: Path,
    *,
    progress: Progress,
    workers: int,
) -> None:
    """Write rank<N>.safetensors for every rank of `config` into `output_dir`.

    `finished`: global name of a tensor that is quantized already → reading it.
    Raises: CheckpointError for a value that is not finite, BuildError when the disk is too small.
    """
    schemas = [list(tensor_schema(config, rank).values()) for rank in range(config.num_rank_files)]
    total_bytes = sum(info.num_bytes for schema in schemas for info in schema)
    free_bytes = shutil.disk_usage(output_dir).free
    if free_bytes < total_bytes:
        free, needed = free_bytes / 2**30, total_bytes / 2**30
        raise BuildError(f"{output_dir}: {free:.1f} GiB free, expected {needed:.1f} GiB")
    lock = Lock()

    def advance(amount: int) -> None:
        with lock:
            progress.advance(amount)

    progress.start("checkpoint", total_bytes)
    try:
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    SafetensorsWriter(
                        output_dir / f"rank{rank}.safetensors", schema, {"format": "pt"}
                    )
                )
                for rank, schema in enumerate(schemas)
            ]
            plan = _Plan(
                model=model,
                config=config,
                finished=finished,
                writers=writers,
                advance=advance,
            )
            _run_all(plan.tasks(), workers)
    finally:
        progress.finish()
    log.info("wrote %d rank files, %.1f GiB", len(schemas), total_bytes / 2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    model: HfModel
    config: CheckpointConfig
    finished: Mapping[str, ReadWhole]
    writers: Sequence[SafetensorsWriter]
    advance: Advance

    def tasks(self) -> Iterator[Task]:
        """Yield the work, the ranks of one tensor together while it is cached."""
        tp_size = self.config.mapping.tp_size
        for stage in range(self.config.mapping.pp_size):
            first = stage * tp_size
            writers = self.writers[first : first + tp_size]
            mapping = file_mapping(self.config.mapping, first)
            layers = mapping.stage_layers(self.config.arch.num_hidden_layers)
            specs = {spec.name: spec for spec in tensor_specs(self.config, first)}
            unwritten = dict(specs)
            for module in self._rounded_modules(layers):
                names = self.config.linear_tensors(module).values()
                # fc and gate share the tensors of their input; the first writes them.
                own = [unwritten.pop(name) for name in names if name in unwritten]
                if own:
                    yield partial(self._round, module, own, writers, layers.start)
            for spec in unwritten.values():
                if spec.name in self.finished:
                    yield partial(self._split, spec, writers, layers.start)
                    continue
                for tp_rank, writer in enumerate(writers):
                    yield partial(self._copy, spec, tp_rank, writer, layers.start)

    def _rounded_modules(self, layers: range) -> Iterator[str]:
        """Yield the modules whose weights are rounded here."""
        arch = self.config.arch
        linears = [linear for layer in layers for linear in layer_linears(arch, layer)]
        for linear in (*linears, lm_head(arch)):
            is_stored = self.config.stored_format(linear.name) is not None
            if is_stored and f"{linear.name}.weight" not in self.finished:
                yield linear.name

    def _copy(
        self, spec: TensorSpec, tp_rank: int, writer: SafetensorsWriter, first_layer: int
    ) -> None:
        sources = self.model.sources[spec.name]
        tp_size, name = self.config.mapping.tp_size, spec.local_name(first_layer)
        parts: list[Slice] = list(slices(spec, sources, tp_rank=tp_rank, tp_size=tp_size))
        for part in parts:
            copy_slice(part, self.model.weights, writer, name, self.advance)

    def _split(
        self, spec: TensorSpec, writers: Sequence[SafetensorsWriter], first_layer: int
    ) -> None:
        whole = self.finished[spec.name]()
        for tp_rank, writer in enumerate(writers):
            part = spec.part(whole, tp_rank, len(writers))
            self._write(spec, part, writer, first_layer)

    def _round(
        self,
        module: str,
        specs: Sequence[TensorSpec],
        writers: Sequence[SafetensorsWriter],
        first_layer: int,
    ) -> None:
        """Round each rank's part of a weight by itself; takes the memory of the whole weight."""
        settings = settings_of(self.config.quantization.of_module(module), self.config.dtype)
        assert settings is not None, module
        algorithm = load_algorithm(settings.algo)
        assert algorithm.quantize_weight is not None, settings.algo
        name = f"{module}.weight"
        source = TensorSource(self.model, self.config.dtype).read(name)
        plain_config = replace(self.config, quantization=Quantization(), layout=None)
        rank = next(i for i, w in enumerate(self.writers) if w is writers[0])
        (plain,) = (spec for spec in tensor_specs(plain_config, rank) if spec.name == name)
        for tp_rank, writer in enumerate(writers):
            part = plain.part(source, tp_rank, len(writers))
            if plain.expert_parallel is None:
                tensors = algorithm.quantize_weight(module, part, settings)
            else:
                made = [algorithm.quantize_weight(module, expert, settings) for expert in part]
                tensors = {role: np.stack([one[role] for one in made]) for role in made[0]}
            for spec in specs:
                self._write(spec, tensors[spec.name], writer, first_layer)

    def _write(
        self,
        spec: TensorSpec,
        part: npt.NDArray[Any],
        writer: SafetensorsWriter,
        first_layer: int,
    ) -> None:
        module, _, role = spec.name.rpartition(".")
        layout = self.config.layout
        if layout is not None and role == "weight":
            form = self.config.stored_format(module)
            if form is not None and form.needs_layout:
                part = arrange(part, layout, bits=form.weight_bits)
        writer.write(spec.local_name(first_layer), np.asarray(part))
        self.advance(part.nbytes)


def _run_all(tasks: Iterator[Task], workers: int) -> None:
    """Run the tasks on threads; the first failure cancels what has not begun and is raised."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
