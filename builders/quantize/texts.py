"""Calibration data: a text or JSONL file, or the text that comes with llmc, as token ids.

A .jsonl record is one document: its "text" or "prompt", or the contents of its "messages". Any
other file is one text. Documents are cut into sequences of at most `max_tokens`.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.errors import CheckpointError, RecipeError

DEFAULT_TEXT = Path(__file__).parent / "calibration.txt"
"""Prose, code and dialogue written for this repository."""

_MIN_TOKENS = 8
"""A shorter rest of a document says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationData:
    """Sequences of token ids, int32 [tokens] each, and the digest of the file they came from."""

    sequences: tuple[npt.NDArray[np.int32], ...]
    digest: str

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence) for sequence in self.sequences)


def digest_of(path: Path | None) -> str:
    """Return the digest of a calibration file (None: the default). Raises: RecipeError."""
    try:
        return hashlib.sha256((path or DEFAULT_TEXT).read_bytes()).hexdigest()
    except OSError as error:
        raise RecipeError(f"quantization.calibration.data: {path}: {error.strerror}") from error


def load_calibration(
    path: Path | None, model_dir: Path, *, samples: int, max_tokens: int, vocab_size: int
) -> CalibrationData:
    """Read and tokenize the file at `path` (None: the default text) with the model's tokenizer.

    Returns at most `samples` sequences of at most `max_tokens`.
    Raises: RecipeError when the file is at fault, CheckpointError when the tokenizer is.
    """
    tokenizer = model_dir / "tokenizer.json"
    if not tokenizer.is_file():
        raise CheckpointError(
            f"{model_dir}: no tokenizer.json, which calibration needs to read text"
        )
    digest = digest_of(path)
    sequences: list[npt.NDArray[np.int32]] = []
    for ids in _tokenize(tokenizer, read_documents(path or DEFAULT_TEXT)):
        if ids and max(ids) >= vocab_size:
            raise CheckpointError(
                f"{tokenizer}: token id {max(ids)}, expected less than vocab_size {vocab_size}"
            )
        for start in range(0, len(ids), max_tokens):
            piece = np.asarray(ids[start : start + max_tokens], dtype=np.int32)
            if len(piece) >= min(_MIN_TOKENS, max_tokens):
                sequences.append(piece)
        if len(sequences) >= samples:
            break
    if not sequences:
        raise RecipeError(f"quantization.calibration.data: {path}: no text of {_MIN_TOKENS} tokens")
    # Evenly spaced: one text may hold prose first and code last.
    count = min(samples, len(sequences))
    chosen = tuple(sequences[index * len(sequences) // count] for index in range(count))
    return CalibrationData(sequences=chosen, digest=digest)


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of a file. Raises: RecipeError with the line of a bad record."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RecipeError(f"quantization.calibration.data: {path}: {reason}") from error
    if path.suffix != ".jsonl":
        yield text
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _document(f"{path}:{number}", line)


def _document(where: str, line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecipeError(f"{where}: not JSON: {error}") from error
    if isinstance(record, dict):
        for key in ("text", "prompt"):
            if isinstance(record.get(key), str):
                return str(record[key])
        if _are_messages(record.get("messages")):
            return "\n\n".join(message["content"] for message in record["messages"])
    raise RecipeError(f'{where}: expected an object with "text", "prompt" or "messages"')


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("content"), str) for item in value
    )


def _tokenize(path: Path, texts: Iterator[str]) -> Iterator[list[int]]:
    """Yield the token ids of each text. Raises: CheckpointError when the tokenizer is at fault."""
    from tokenizers import Tokenizer  # only once a text is read

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in texts:
        yield tokenizer.encode(text).ids
