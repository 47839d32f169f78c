"""The texts an engine is measured on: files of the reader, or the two that come with llmc."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmc.errors import CheckpointError, RecipeError
from llmc.runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

DEFAULT_TEXTS = tuple(Path(__file__).parent / "texts" / name for name in ("prose.txt", "code.txt"))
"""About 1500 tokens each. Quantization to few bits hurts code first, so the two are told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateText:
    """One domain: a name for reports, the text, and the digest of the file it came from."""

    name: str
    sha256: str
    text: str


def read_texts(paths: Sequence[Path]) -> tuple[GateText, ...]:
    """Read one domain a file, named as its stem, or as given where two stems are equal.

    Raises: RecipeError for a file that cannot be read or is not UTF-8 text.
    """
    paths = list(dict.fromkeys(paths))
    stems = [path.stem for path in paths]
    texts = []
    for path in paths:
        try:
            data = path.read_bytes()
            text = data.decode("utf-8")
        except OSError as error:
            raise RecipeError(f"{path}: {error.strerror}, expected a text to measure on") from error
        except UnicodeDecodeError as error:
            raise RecipeError(f"{path}: not UTF-8 text (byte {error.start})") from error
        name = path.stem if stems.count(path.stem) == 1 else str(path)
        texts.append(GateText(name=name, sha256=hashlib.sha256(data).hexdigest(), text=text))
    return tuple(texts)


def encode(text: GateText, tokenizer: Tokenizer, *, vocab_size: int, max_tokens: int) -> list[int]:
    """Return the first `max_tokens` token ids of `text` that the model knows.

    Raises: CheckpointError when fewer than two are left: nothing can be predicted.
    """
    ids = tokenizer.encode(text.text)
    known = [token for token in ids if token < vocab_size]
    if len(known) < len(ids):
        lost = len(ids) - len(known)
        log.warning("%s: %d tokens are outside the model's %d", text.name, lost, vocab_size)
    if len(known) > max_tokens:
        log.info("%s: the first %d of %d tokens are measured", text.name, max_tokens, len(known))
    if len(known) < 2:
        raise CheckpointError(f"{text.name}: {len(known)} tokens, expected at least 2")
    return known[:max_tokens]
