from pathlib import Path
from typing import Any

import pytest

from llmc.builders.hf.config import HfConfig
from llmc.errors import CheckpointError


def config(**data: Any) -> HfConfig:
    return HfConfig(Path("m/config.json"), data)


def test_settings_are_read_by_type() -> None:
    settings = config(size=4, rate=2, name="x", flag=True, scaling={"a": 1}, nothing=None)
    assert settings.require(int, "size") == 4
    assert settings.require(float, "rate") == 2.0
    assert settings.require(str, "name") == "x"
    assert settings.optional(bool, "flag", False) is True
    assert settings.maybe(dict[str, Any], "scaling") == {"a": 1}
    assert settings.maybe(int, "nothing") is None
    assert settings.optional(int, "absent", 7) == 7
    assert settings.reasons == []


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "4", "m/config.json: key: '4', expected int"),
        (int, True, "m/config.json: key: True, expected int"),
        (int, 4.0, "m/config.json: key: 4.0, expected int"),
        (bool, 1, "m/config.json: key: 1, expected bool"),
        (float, "1e-5", "m/config.json: key: '1e-5', expected float"),
        (int, None, "m/config.json: key: missing, expected int"),
    ],
)
def test_another_type_is_refused(kind: type[int], value: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        config(key=value).require(kind, "key")
    assert caught.value.message == message


def test_a_count_is_at_least_one() -> None:
    assert config().count("heads", 3) == 3
    with pytest.raises(CheckpointError, match="heads: 0, expected at least 1"):
        config(heads=0).count("heads")
    assert config(heads=None).maybe_count("heads") is config().maybe_count("heads") is None
    assert config(heads=2).maybe_count("heads") == 2
    with pytest.raises(CheckpointError, match="heads: -1, expected at least 1"):
        config(heads=-1).maybe_count("heads")


def test_expectations_and_unread_settings_are_collected() -> None:
    settings = config(
        hidden_act="gelu",
        rope_interleaved=True,
        known=1,
        surprise=2,
        off=False,
        empty={},
        architectures=["X"],
        attention_dropout=0.1,
        temperature=0.6,
        transformers_version="5",
        _name_or_path="x",
    )
    settings.expect("hidden_act", "silu")
    settings.expect("absent", 1)
    settings.require(int, "known")
    settings.question_unread()
    assert settings.reasons == [
        "m/config.json: hidden_act: 'gelu', expected 'silu'",
        "m/config.json: rope_interleaved: True, expected no such setting,"
        " as nothing here knows what it means",
        "m/config.json: surprise: 2, expected no such setting, as nothing here knows what it means",
    ]


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, "bfloat16"),
        ({}, None),
    ],
)
def test_the_dtype_has_two_names(data: dict[str, Any], dtype: str | None) -> None:
    settings = config(**data)
    assert settings.dtype == dtype and settings.reasons == []


def test_an_unknown_dtype_is_refused() -> None:
    settings = config(torch_dtype="int8")
    assert settings.dtype is None
    assert "'int8', expected one of float32, float16, bfloat16" in settings.reasons[0]


@pytest.mark.parametrize("value", [None, [], ["A", "B"], "A", [1]])
def test_one_architecture_is_expected(value: Any) -> None:
    settings = config(architectures=value)
    assert settings.architecture is None
    assert "expected a list of one name" in settings.reasons[0]


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_file_that_is_no_object_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config.json: "):
        HfConfig.open(tmp_path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json: cannot be read: No such file"):
        HfConfig.open(tmp_path)
