"""What every family must refuse or get right of the files of a model, whatever it calls tensors."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from llmc.builders.hf.preflight import examine
from llmc.errors import CheckpointError
from llmc.weights import SafetensorsFile
from tests.builders.families.test_families import convert_to
from tests.builders.families.tiny_families import CASES, write_case
from tests.builders.hf.damages import Damage, tensors_changed


@pytest.fixture(scope="module", params=CASES)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp(request.param) / "model", request.param)[0]


@pytest.fixture(scope="module")
def some(model_dir: Path) -> list[str]:
    """Return three of the model's tensors."""
    file = SafetensorsFile.open(model_dir / "model.safetensors")
    file.close()
    names = sorted(file.infos)
    return [names[0], names[len(names) // 2], names[-1]]


def damaged(model_dir: Path, output: Path, damage: Damage) -> Path:
    shutil.copytree(model_dir, output)
    damage(output)
    return output


def reasons_of(model_dir: Path) -> list[str]:
    model, reasons = examine(model_dir)
    if model is not None:
        model.weights.close()
    return reasons


def changed(change: Any) -> Damage:
    return tensors_changed(change)


def damages(name: str) -> Iterator[tuple[str, Damage]]:
    yield "missing", changed(lambda tensors: tensors.pop(name))
    narrow = changed(lambda tensors: tensors.update({name: tensors[name][..., :-1].copy()}))
    yield "shape", narrow
    integers = changed(lambda tensors: tensors.update({name: tensors[name].astype(np.int64)}))
    yield "dtype", integers
    extra = changed(lambda tensors: tensors.update({f"{name}.x": np.zeros(1, np.float32)}))
    yield "not a tensor of", extra


def test_every_damage_to_a_tensor_is_named(
    model_dir: Path, some: list[str], tmp_path: Path
) -> None:
    assert reasons_of(model_dir) == []
    for name in some:
        for number, (word, damage) in enumerate(damages(name)):
            directory = damaged(model_dir, tmp_path / f"{some.index(name)}-{number}", damage)
            reasons = reasons_of(directory)
            found = [line for line in reasons if name in line and word in line]
            if word == "missing":
                # A family that knows other names for the tensor may ask for the first of them.
                found = found or reasons
            assert found and str(directory) in found[0], (name, word, reasons)


def test_a_value_that_is_no_number_is_named(
    model_dir: Path, some: list[str], tmp_path: Path
) -> None:
    for position, name in enumerate(some):
        poison = changed(
            lambda tensors, name=name: tensors[name].reshape(-1).__setitem__(-3, np.nan)
        )
        directory = damaged(model_dir, tmp_path / f"{position}", poison)
        with pytest.raises(CheckpointError, match=r"nan at .*expected a finite number") as caught:
            convert_to(directory, tmp_path / f"out{position}")
        assert name in caught.value.message
        assert not list((tmp_path / f"out{position}").iterdir())


def test_without_a_word_the_output_is_tied_as_transformers_does(
    model_dir: Path, tmp_path: Path
) -> None:
    def forget(directory: Path) -> None:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        config.pop("tie_word_embeddings", None)
        path.write_text(json.dumps(config))

    directory = damaged(model_dir, tmp_path / "model", forget)
    model, _ = examine(directory)
    assert model is not None
    model.weights.close()
    theirs: Any = AutoConfig.from_pretrained(directory)
    assert model.arch.tie_word_embeddings == theirs.tie_word_embeddings
