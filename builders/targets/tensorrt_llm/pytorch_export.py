"""Writes the Hugging Face checkpoint that the PyTorch backend of TensorRT-LLM serves.

Safetensors shards with an index, config.json, hf_quant_config.json and the tokenizer. Memory is
that of one linear module (of all its experts), or of one tensor of a checkpoint that is split.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.builders.casting import cast
from llmc.builders.families.inverse import Piece, is_straight, place, row_numbers
from llmc.builders.hf.tokenizer_files import copy_files
from llmc.builders.joining import WholeTensors
from llmc.builders.targets.tensorrt_llm.pytorch_formats import (
    FOLDED,
    HF_FORMATS,
    SECOND_SCALE,
    Tensors,
    quantize_plain,
)
from llmc.builders.targets.tensorrt_llm.pytorch_layout import (
    HfLayout,
    HfModule,
    layout_of,
    layout_reasons,
    other_half,
)
from llmc.builders.targets.tensorrt_llm.pytorch_settings import write_settings
from llmc.checkpoint import Checkpoint
from llmc.dtypes import numpy_dtype
from llmc.errors import BuildError, CheckpointError, UnsupportedError
from llmc.log import Progress
from llmc.quant.format import EXPERTS_SHARE
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter

SHARD_BYTES = 5 * 10**9
"""A shard holds no more, unless one tensor does."""

_PIECE_BYTES = 8 << 20


def export(checkpoint: Checkpoint, output_dir: Path, progress: Progress) -> None:
    """Write the checkpoint into the existing, empty `output_dir`.

    Raises: UnsupportedError for a checkpoint that the backend does not read, CheckpointError for
    numbers that have no place there, BuildError when the disk is full.
    """
    reasons = [*layout_reasons(checkpoint.config)]
    if reasons:
        raise UnsupportedError(f"{checkpoint.directory}: not for the PyTorch backend", reasons)
    layout = layout_of(checkpoint.config)
    exporter = _Exporter(checkpoint, layout)
    shards = _shards(exporter.infos())
    total = sum(info.num_bytes for shard in shards for info in shard)
    if (free := shutil.disk_usage(output_dir).free) < total:
        raise BuildError(
            f"{output_dir}: {free / 2**30:.1f} GiB free, expected {total / 2**30:.1f} GiB"
        )
    names = [_shard_name(index, len(shards)) for index in range(len(shards))]
    progress.start("Hugging Face checkpoint", total)
    try:
        with ExitStack() as stack:
            for name, infos in zip(names, shards, strict=True):
                path = output_dir / name
                writer = stack.enter_context(SafetensorsWriter(path, infos, {"format": "pt"}))
                exporter.writers |= dict.fromkeys(writer.infos, writer)
            exporter.write(progress)
    finally:
        progress.finish()
    if len(shards) > 1:
        weight_map = {i.name: n for n, shard in zip(names, shards, strict=True) for i in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        path = output_dir / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    write_settings(checkpoint, layout, output_dir)
    copy_files(checkpoint.directory, output_dir)


class _Exporter:
    """Every tensor of the Hugging Face checkpoint: first what they are, then their values."""

    def __init__(self, checkpoint: Checkpoint, layout: HfLayout) -> None:
        self._config = checkpoint.config
        self._whole = WholeTensors(checkpoint)
        self._layout = layout
        self.writers: dict[str, SafetensorsWriter] = {}
        # What follows one another in a checkpoint is, mostly, parts of one tensor or module.
        self._tensor = lru_cache(maxsize=1)(self._read_tensor)
        self._stored = lru_cache(maxsize=1)(self._read_module)

    def infos(self) -> list[TensorInfo]:
        """Return the headers of all tensors, layer by layer."""
        found: list[tuple[int | None, TensorInfo]] = []
        for name, pieces in self._layout.plain.items():
            spec = self._whole.specs[pieces[0].spec.name]
            info = TensorInfo(name=name, dtype=self._whole.dtype(spec), shape=pieces[0].rows.shape)
            found.append((spec.layer, info))
        for module in self._layout.modules:
            found += [(module.linear.layer, info) for info in self._module_infos(module)]
        for name, source in self._layout.kv_scales.items():
            info = TensorInfo(name=name, dtype="float32", shape=(1,))
            found.append((self._whole.specs[source].layer, info))
        return [info for _, info in sorted(found, key=lambda one: -1 if one[0] is None else one[0])]

    def write(self, progress: Progress) -> None:
        """Write every tensor."""
        for name, pieces in self._layout.plain.items():
            self._write_plain(name, pieces)
            progress.advance(self.writers[name].infos[name].num_bytes)
        for module in self._layout.modules:
            for name, values in self._module_tensors(module).items():
                self.writers[name].write(name, values)
                progress.advance(values.nbytes)
            self._whole.release()
        for name, source in self._layout.kv_scales.items():
            self.writers[name].write(name, self._read_tensor(source).reshape(1))
            progress.advance(4)

    def _module_infos(self, module: HfModule) -> Iterator[TensorInfo]:
        quantization = self._config.quantization.of_module(module.linear.name)
        for tensor in HF_FORMATS[module.algo].tensors:
            if tensor.suffix == "pre_quant_scale" and self._is_folded(module):
                continue
            shape = tensor.shape(module.num_out, module.linear.num_in, quantization.group_size)
            dtype = tensor.dtype or self._config.dtype
            yield TensorInfo(name=f"{module.name}.{tensor.suffix}", dtype=dtype, shape=shape)

    def _module_tensors(self, module: HfModule) -> Tensors:
        stored = self._stored(module.linear.name)
        if module.expert is not None:
            stored = {
                role: values if role in EXPERTS_SHARE else values[module.expert]
                for role, values in stored.items()
            }
        rows = row_numbers(list(module.pieces)) - (module.expert or 0) * module.linear.num_out
        made = HF_FORMATS[module.algo].write(stored, rows, module.name)
        if self._is_folded(module):
            del made["pre_quant_scale"]
        return {f"{module.name}.{suffix}": values for suffix, values in made.items()}

    def _is_folded(self, module: HfModule) -> bool:
        name = f"{module.linear.name}.prequant_scaling_factor"
        return module.algo == FOLDED and any(name in one for one in self._layout.folded.values())

    def _read_tensor(self, name: str) -> npt.NDArray[Any]:
        return self._whole.read(self._whole.specs[name])

    def _read_module(self, name: str) -> Tensors:
        """Return the tensors of a linear module by role, whole."""
        algo = self._config.quantization.of_module(name).quant_algo
        assert algo is not None, name
        form, stored = self._config.stored_format(name), {}
        for role, tensor in self._config.linear_tensors(name).items():
            spec = self._whole.specs[tensor]
            if not self._whole.has(spec):
                continue
            is_packed = form is not None and form.needs_layout and role == "weight"
            bits = form.weight_bits if form is not None and is_packed else None
            stored[role] = self._whole.read(spec, bits)
        if form is None:
            return quantize_plain(algo, stored["weight"], self._config.dtype)
        return stored | self._shared(name, algo)

    def _shared(self, name: str, algo: str) -> Tensors:
        """Return the single scales that both halves of a gated MLP must have, one module there.

        Raises: CheckpointError when the halves have different ones that mean something.
        """
        partner, shared = other_half(name), {}
        for role in HF_FORMATS[algo].alike:
            if f"{partner}.{role}" not in self._whole.specs:
                continue
            own, other = (
                self._whole.read(self._whole.specs[f"{module}.{role}"])
                for module in (name, partner)
            )
            # Of INT4 it only brings the scales into FP8's range: the weight does not change.
            if own.tobytes() != other.tobytes() and (algo, role) != ("W4A8_AWQ", SECOND_SCALE):
                raise CheckpointError(
                    f"{name}.{role}: {float(own.max()):g}, {partner} has {float(other.max()):g}:"
                    f" the PyTorch backend makes one module of both, with one"
                )
            shared[role] = np.maximum(own, other)
        return shared

    def _write_plain(self, name: str, pieces: list[Piece]) -> None:
        writer = self.writers[name]
        info = writer.infos[name]
        is_streamed = all(is_straight(piece.rows) for piece in pieces)
        whole = None if is_streamed else np.empty(info.shape, numpy_dtype(info.dtype))
        for piece in pieces:
            for start, values in self._values(piece, info.dtype):
                if whole is None:
                    writer.write_rows(name, piece.rows.start + start, values)
                else:
                    place(whole, piece.rows, start, values)
        if whole is not None:
            writer.write(name, whole)
        self._whole.release()

    def _values(self, piece: Piece, dtype: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the piece's rows as Hugging Face has them, a few MiB at a time."""
        tensor = self._tensor(piece.spec.name)
        rows = tensor.reshape(-1) if piece.rows.vector else tensor.reshape(-1, tensor.shape[-1])
        rows = rows[piece.first : piece.first + piece.rows.count]
        factor = self._factor(piece.spec.name)
        step = max(1, _PIECE_BYTES // max(1, rows[:1].nbytes))
        for start in range(0, len(rows), step):
            values = rows[start : start + step]
            if factor is not None or piece.rows.plus_one:
                wide = values.astype(np.float32)
                wide = wide if factor is None else wide * factor
                values = cast(wide - np.float32(piece.rows.plus_one), dtype)
            yield start, values

    def _factor(self, name: str) -> npt.NDArray[np.float32] | None:
        """Return what the output of norm tensor `name` is multiplied by, before anything reads it.

        Raises: CheckpointError when its readers want different factors.
        """
        found = self._layout.folded.get(name.rpartition(".")[0])
        if found is None:
            return None
        factors = [self._read_tensor(one).astype(np.float32) for one in found]
        for one, factor in zip(found[1:], factors[1:], strict=True):
            if not np.array_equal(factor, factors[0]):
                raise CheckpointError(
                    f"{one}: not as {found[0]}: both read one norm, into which the PyTorch"
                    f" backend wants them folded",
                    hint="quantize with W4A8_AWQ or FP8, whose scales stay with the module",
                )
        return factors[0]


def _shards(infos: list[TensorInfo]) -> list[list[TensorInfo]]:
    """Cut the tensors into runs of at most SHARD_BYTES."""
    shards: list[list[TensorInfo]] = [[]]
    size = 0
    for info in infos:
        if shards[-1] and size + info.num_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(info)
        size += info.num_bytes
    return shards


def _shard_name(index: int, count: int) -> str:
    if count == 1:
        return "model.safetensors"
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors"
