"""What every family must keep, tested on the day its line is added.

The model comes from transformers itself, so that tensor names and config keys are the real ones.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.builders.convert import convert
from llmc.builders.families import FAMILIES
from llmc.builders.families.family import load_family, unhandled_settings
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.reader import HfWeights
from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization, TensorSpec, tensor_specs
from llmc.errors import CheckpointError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.builders.families.tiny_families import CASES, write_case
from tests.builders.hf_models import assemble

SPLITS = [(2, 1, None), (4, 1, 0), (1, 2, None), (2, 2, 1)]
"""tp_size, pp_size, and which dimension of the embedding is split, if any."""


@pytest.fixture(scope="module", params=CASES)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp(request.param), request.param)[0]


@pytest.fixture(scope="module")
def whole(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return convert_to(model_dir, tmp_path_factory.mktemp("whole") / "checkpoint")


def convert_to(
    model_dir: Path, output_dir: Path, *, tp: int = 1, pp: int = 1, **choices: Any
) -> Checkpoint:
    output_dir.mkdir()
    convert(
        model_dir,
        output_dir,
        dtype=None,
        mapping=Mapping(tp_size=tp, pp_size=pp),
        quantization=Quantization(),
        progress=NullProgress(),
        workers=2,
        **choices,
    )
    return Checkpoint.open(output_dir)


def test_every_family_has_a_tiny_model() -> None:
    assert {case.architecture for case in CASES.values()} == FAMILIES.keys()


def test_every_weight_of_the_schema_is_the_source_rows(model_dir: Path, whole: Checkpoint) -> None:
    arch = whole.config.arch
    family = load_family(arch.architecture)
    assert arch == family.arch(HfConfig.open(model_dir)), "config.json says something else"
    source = HfWeights.open(model_dir)
    assert source.reasons == []
    tensors = {name: source.read(name) for name in source.infos}
    unread = set(tensors)
    specs = {spec.name: spec for spec in tensor_specs(whole.config, 0)}
    for spec in specs.values():
        rows = family.sources(spec, arch, tensors)
        if spec.name == family.tied[0] and rows[0].source not in tensors:
            rows = family.sources(specs[family.tied[1]], arch, tensors)
        unread -= {row.source for row in rows}
        wanted = assemble(rows, tensors).reshape(spec.shape)
        np.testing.assert_array_equal(whole.rank(0).read(spec.name), wanted, spec.name)
    assert not unread


@pytest.mark.parametrize(("tp", "pp", "embedding_sharding_dim"), SPLITS)
def test_what_was_split_rejoins(
    tp: int,
    pp: int,
    embedding_sharding_dim: int | None,
    model_dir: Path,
    whole: Checkpoint,
    tmp_path: Path,
) -> None:
    split = convert_to(
        model_dir,
        tmp_path / "split",
        tp=tp,
        pp=pp,
        use_parallel_embedding=embedding_sharding_dim is not None,
        embedding_sharding_dim=embedding_sharding_dim or 0,
    )
    names = set()
    layers_per_stage = split.config.arch.num_hidden_layers // pp
    for stage in range(pp):
        for spec in tensor_specs(split.config, stage * tp):
            names.add(spec.name)
            local = spec.local_name(stage * layers_per_stage)
            parts = [split.rank(stage * tp + rank).read(local) for rank in range(tp)]
            np.testing.assert_array_equal(
                rejoin(spec, parts), whole.rank(0).read(spec.name), spec.name
            )
    assert names == whole.rank(0).infos.keys()


def rejoin(spec: TensorSpec, parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Undo the split the slow way: unit by unit, each from the first rank that holds it."""
    if spec.axis is None:
        for part in parts[1:]:
            np.testing.assert_array_equal(part, parts[0], spec.name)
        return parts[0]
    axis, tp_size = spec.axis, len(parts)
    joined: list[npt.NDArray[Any]] = []
    offset = 0
    for segment in spec.segments:
        units_per_rank = max(1, -(-segment.count // tp_size))
        length = units_per_rank * segment.size
        pieces = [part.take(range(offset, offset + length), axis) for part in parts]
        replicas = max(1, tp_size // segment.count)
        for rank, piece in enumerate(pieces):
            np.testing.assert_array_equal(piece, pieces[rank // replicas * replicas])
        together = np.concatenate(pieces[::replicas], axis)
        assert not together.take(range(segment.length, together.shape[axis]), axis).any()
        joined.append(together.take(range(segment.length), axis))
        offset += length
    assert all(part.shape[axis] == offset for part in parts)
    return np.concatenate(joined, axis)


def test_our_own_config_is_handled_and_another_is_not(whole: Checkpoint) -> None:
    data = whole.config.to_json()
    assert unhandled_settings(CheckpointConfig.from_json(data).arch) == []
    family = load_family(data["architecture"])
    arch = CheckpointConfig.from_json(data).arch
    unknown = replace(arch, architecture="XForCausalLM")
    assert "architecture: 'XForCausalLM', expected one of" in unhandled_settings(unknown)[0]
    for key, wanted in family.settings(arch).items():
        try:
            changed = CheckpointConfig.from_json(data | {key: "other"}).arch
        except CheckpointError as error:  # the architecture itself is read from this key
            assert error.message.startswith(f"{key}: 'other', expected")
            continue
        assert unhandled_settings(changed) == [f"{key}: 'other', expected {wanted!r}"]
    assert unhandled_settings(CheckpointConfig.from_json(data | {"new": 1, "off": 0}).arch) == [
        "new: 1, expected no such setting"
    ]
