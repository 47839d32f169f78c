"""`llmc verify --network`: the network TensorRT is given, evaluated beside the CPU engine."""

import json
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmc.errors import CheckpointError, GateError

if TYPE_CHECKING:
    from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
    from llmc.checkpoint import Checkpoint
    from llmc.runtime.engine import Engine


def verify_network(
    output: Path, *, reference: Path | None, texts: list[Path], typed: bool, as_json: bool
) -> None:
    """Lower `output`'s checkpoint again, evaluate it and print how far its logits are off.

    Raises: GateError when that is too far; as the lowering and the interpreter do.
    """
    from llmc.checkpoint import Checkpoint
    from llmc.gate.corpus import DEFAULT_TEXTS, encode, read_texts
    from llmc.gate.network import MAX_TOKENS, EvaluatedNetwork
    from llmc.runtime.tokenizer import Tokenizer

    directory = find_checkpoint(output)
    checkpoint = Checkpoint.open(directory)
    vocab_size = checkpoint.config.arch.vocab_size
    tokenizer = Tokenizer.open(directory)
    found = {}
    with tempfile.TemporaryDirectory(prefix="llmc-verify-") as scratch:
        with closing(_open_reference(reference, checkpoint, Path(scratch))) as engine:
            limit = min(MAX_TOKENS, engine.limits.max_seq_len, engine.limits.max_num_tokens)
            max_seq_len, table_inputs = _engine_choices(output) or (limit, False)
            limit = min(limit, max_seq_len)
            mode: Mode = "typed" if typed else "ideal"
            network = EvaluatedNetwork(
                checkpoint, max_seq_len=max_seq_len, table_inputs=table_inputs, mode=mode
            )
            for text in read_texts(texts or DEFAULT_TEXTS):
                tokens = encode(text, tokenizer, vocab_size=vocab_size, max_tokens=limit)
                found[text.name] = network.compare(tokens, engine)
    if as_json:
        lines = {name: asdict(one) | {"passed": one.passed} for name, one in found.items()}
        typer.echo(json.dumps(lines, indent=2))
    else:
        for name, one in found.items():
            typer.echo(
                f"{name}: {one.num_tokens} tokens through {one.num_layers} layers: logits differ by"
                f" {one.max_difference:.2e} at most, {one.mean_difference:.2e} on average;"
                f" they spread by {one.spread:.2f}"
            )
    failed = [name for name, one in found.items() if not one.passed]
    if failed:
        first = found[failed[0]]
        assert first.tolerance is not None
        raise GateError(
            f"{directory}: the network is not the model: on {', '.join(failed)} logits differ by"
            f" {first.max_difference:.2e} at most and {first.mean_difference:.2e} on average,"
            f" expected {first.tolerance.max_difference * first.spread:.2e} and"
            f" {first.tolerance.mean_difference * first.spread:.2e}"
        )


def find_checkpoint(output: Path) -> Path:
    """Return the checkpoint that `output` is, has, or was built from. Raises: CheckpointError."""
    for directory in (output, output / "checkpoint", output.absolute().parent / "checkpoint"):
        if (directory / "config.json").is_file() and any(directory.glob("rank*.safetensors")):
            return directory
    raise CheckpointError(
        f"{output}: no checkpoint in it or beside it, and the network is made from one",
        hint="give a checkpoint, what `llmc build -o OUT` wrote, or OUT/engine beside it",
    )


def _open_reference(reference: Path | None, checkpoint: "Checkpoint", scratch: Path) -> "Engine":
    from llmc.gate.network import open_cpu_reference
    from llmc.gate.reference import engine_reference
    from llmc.log import NullProgress

    if reference is None:
        return open_cpu_reference(checkpoint, scratch, NullProgress())
    return engine_reference(reference).open()


def _engine_choices(output: Path) -> tuple[int, bool] | None:
    """Return max_seq_len, and whether weights are inputs, where `output` is or has an engine."""
    from llmc.runtime.engine import read_engine_config

    for directory in (output / "engine", output):
        if (directory / "config.json").is_file():
            config = read_engine_config(directory)
            build = config.get("build_config")
            if isinstance(build, dict):
                bindings = config.get("llmc", {}).get("bindings", ())
                has_inputs = any(binding.get("is_weight") for binding in bindings)
                return int(build["max_seq_len"]), has_inputs
    return None
