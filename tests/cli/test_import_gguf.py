"""`llmc import-gguf` as a user runs it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmc.cli.main import app
from llmc.errors import CheckpointError, RecipeError
from tests.builders.hf.tiny_gguf import make_model, make_tokenizer, write_gguf


def test_second_run_says_cached(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    file = write_gguf(tmp_path / "m.gguf", make_model(tokenizer), tokenizer)
    command = ["import-gguf", str(file), "-o", str(tmp_path / "hf"), "--dtype", "float16"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0 and first.stdout == f"{tmp_path / 'hf'}: written\n"
    second = CliRunner().invoke(app, command)
    assert second.stdout == f"{tmp_path / 'hf'}: cached, inputs unchanged\n"
    made = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "manifest.json"} <= made


def test_mistakes_are_named(tmp_path: Path) -> None:
    command = ["import-gguf", str(tmp_path / "no.gguf"), "-o", str(tmp_path / "hf")]
    missing = CliRunner().invoke(app, command)
    assert isinstance(missing.exception, CheckpointError)
    with pytest.raises(RecipeError, match="--dtype: 'int8', expected one of float32"):
        CliRunner().invoke(app, [*command, "--dtype", "int8"], catch_exceptions=False)
