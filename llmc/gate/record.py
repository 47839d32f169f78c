"""What a gate leaves on disk: measurements, and the verdict that lies beside an engine.

`measurement.json` holds numbers, `gate.json` judges them. A verdict names its engine by content: of
an engine that was changed or swapped it says nothing. Reading needs no engine and no builder, so a
server may ask first.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmc import artifacts
from llmc.errors import CheckpointError, GateError

GATE_NAME = "gate.json"
ASIDE_SUFFIX = ".failed"
"""OUT/engine that failed its gate is kept as OUT/engine.failed."""

MEASUREMENT_NAME = "measurement.json"

Metric = Literal[
    "mean_kl", "perplexity_increase", "top1_agreement", "nonfinite_tokens", "flat_tokens"
]


class _OnDisk(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WorstToken(_OnDisk):
    """A token after which the candidate's prediction is far from the reference's."""

    index: int = Field(description="Which token of the text, from 0.")
    kl: float = Field(description="KL(reference || engine) of the next token, in nats.")
    context: str = Field(description="The text that ends with it.")
    reference: str = Field(description="The next token the reference likes best.")
    candidate: str = Field(description="The next token the engine likes best.")


class Divergence(_OnDisk):
    """An engine's predictions beside the reference's, over one text."""

    reference_perplexity: float = Field(description="exp of the mean loss of the reference.")
    perplexity_increase: float = Field(description="perplexity / reference_perplexity - 1.")
    mean_kl: float = Field(description="Mean KL(reference || engine) of a token, in nats.")
    p99_kl: float = Field(description="Of 100 tokens one has a larger KL.")
    max_kl: float = Field(description="Largest KL of a token.")
    top1_agreement: float = Field(description="Share of tokens where both like the same best.")
    kl_by_position: tuple[float | None, ...] = Field(
        description="Mean KL of tokens at positions [i, i + 1) * position_step of their window."
    )
    worst: tuple[WorstToken, ...] = Field(description="The tokens of largest KL.")


class TextMeasurement(_OnDisk):
    """One text. Tokens whose logits are not finite are counted and left out of everything else."""

    name: str = Field(description="Domain: the file's name without its ending.")
    sha256: str = Field(description="SHA-256 of the text file.")
    num_tokens: int = Field(description="Tokens read.")
    nonfinite_tokens: int = Field(description="Tokens with a nan or infinity among their logits.")
    flat_tokens: int = Field(description="Tokens whose logits are all equal.")
    perplexity: float | None = Field(
        description="exp of the engine's mean loss; absent when no token is finite."
    )
    divergence: Divergence | None = Field(
        description="Absent without a reference, or when no token is finite."
    )


class ReferenceFacts(_OnDisk):
    """What the engine was compared with."""

    source: str = Field(description="Directory of the model or engine, as it was called.")
    dtype: str = Field(description="Type of its weights and arithmetic.")
    key: str = Field(description="Names what it was made from, or its content.")


class Measurement(_OnDisk):
    """One engine over all texts."""

    engine: str = Field(description="Content digest of the engine.")
    quant_algo: str | None = Field(description="Quantization of its weights.")
    kv_cache_quant_algo: str | None = Field(description="Quantization of its KV cache.")
    dtype: str = Field(description="Type of what is not quantized.")
    reference: ReferenceFacts | None = Field(description="Absent: the engine was run alone.")
    window_tokens: int = Field(description="Longest stretch read with a KV cache that was empty.")
    position_step: int = Field(description="Positions in one point of kl_by_position.")
    texts: tuple[TextMeasurement, ...]


class Check(_OnDisk):
    """One metric of one text held to its threshold."""

    text: str
    sha256: str
    metric: Metric
    value: float
    threshold: float
    passed: bool

    def __str__(self) -> str:
        words = "at least" if self.metric == "top1_agreement" else "at most"
        return f"{self.text}: {self.metric} {self.value:.4g}, expected {words} {self.threshold:.4g}"


class Gate(_OnDisk):
    """gate.json: the verdict on one engine and what it rests on."""

    schema_version: Literal[1] = 1
    verdict: Literal["passed", "failed"]
    checks: tuple[Check, ...]
    measurement: Measurement

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record atomically: a reader sees the old file or the new one."""
    staging = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    staging.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    staging.replace(path)


def read_measurement(directory: Path) -> Measurement:
    """Read measurement.json. Raises: CheckpointError when it is missing or malformed."""
    path = directory / MEASUREMENT_NAME
    try:
        return Measurement.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path}: {_reason(error)}") from error


def read_gate(engine_dir: Path) -> Gate | None:
    """Read an engine's gate.json, absent None. Raises: CheckpointError when it is malformed."""
    path = engine_dir / GATE_NAME
    try:
        return Gate.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            f"{path}: {_reason(error)}", hint="run `llmc verify` again"
        ) from error


def require_passed(engine_dir: Path) -> Gate:
    """Return the verdict of an engine that passed its gate and has not changed since.

    Reads every byte of the engine. Raises: GateError for an engine that failed, was never gated or
    is another than the gated one; CheckpointError for a directory that is no engine of llmc.
    """
    if is_kept_aside(engine_dir):
        raise GateError(
            f"{engine_dir}: not there, it failed the quality gate and is {_aside(engine_dir)}",
            hint="build it in another way, or with other thresholds",
        )
    gate = read_gate(engine_dir)
    if gate is None:
        raise GateError(f"{engine_dir}: never passed the quality gate: no {GATE_NAME}", hint=_HINT)
    manifest = artifacts.read_manifest(engine_dir)
    changes = artifacts.verify(engine_dir, manifest)
    if gate.measurement.engine != manifest.content_digest:
        gated, found = gate.measurement.engine[:12], manifest.content_digest[:12]
        changes.insert(0, f"{GATE_NAME} is about engine {gated}…, this is {found}…")
    if changes:
        lines = "\n  - ".join([f"{engine_dir}: not the engine that was gated", *changes])
        raise GateError(lines, hint=_HINT)
    if gate.verdict == "failed":
        raise GateError(failure_text(gate, engine_dir), hint=_HINT)
    return gate


def failure_text(gate: Gate, engine_dir: Path) -> str:
    """Return what failed, a line for each number."""
    lines = [f"{engine_dir}: failed the quality gate", *map(str, gate.failures)]
    return "\n  - ".join(lines)


def is_kept_aside(engine_dir: Path) -> bool:
    """Say whether the engine that belongs here failed its gate and was put aside."""
    return not engine_dir.exists() and _aside(engine_dir).is_dir()


def _aside(engine_dir: Path) -> Path:
    return engine_dir.with_name(engine_dir.name + ASIDE_SUFFIX)


_HINT = "gate it with `llmc verify OUT`, or insist with --allow-ungated"


def _reason(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"
