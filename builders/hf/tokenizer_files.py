"""The files beside the weights that a tokenizer, a chat and generation need: checked and copied.

What is in them is llmc.runtime.tokenizer's business; here they are only data.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmc.builders.hf.config import read_json
from llmc.errors import CheckpointError

log = logging.getLogger(__name__)

COPIED_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
)
TEMPLATES_FOLDER = "additional_chat_templates"

_OLDER_FILES = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "*.tiktoken",
    "vocab.json",
)
_CONVERSION = (
    "write one with transformers (tokenizer.model also needs pip install sentencepiece):"
    " python -c \"from transformers import AutoTokenizer as A; A.from_pretrained('{directory}')"
    ".save_pretrained('{directory}')\""
)


def files_to_copy(directory: Path) -> list[Path]:
    """Return what there is of them in `directory`, as paths relative to it."""
    templates = sorted((directory / TEMPLATES_FOLDER).glob("*.jinja"))
    found = [directory / name for name in COPIED_FILES] + templates
    return [path.relative_to(directory) for path in found if path.is_file()]


def copy_files(source: Path, target: Path) -> None:
    """Copy them from directory `source` to the existing directory `target`."""
    for path in files_to_copy(source):
        (target / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / path, target / path)


def tokenizer_reasons(directory: Path, *, embedding: str, num_rows: int) -> Iterator[str]:
    """Yield what is wrong with the tokenizer of a model whose tensor `embedding` has `num_rows`."""
    path = directory / "tokenizer.json"
    if not path.exists():
        older = [found.name for name in _OLDER_FILES for found in sorted(directory.glob(name))]
        if older:
            how = _CONVERSION.format(directory=directory)
            yield f"{directory / older[0]}: no tokenizer.json beside it, expected one; {how}"
        return
    try:
        vocabulary, _ = _tokens(path)
    except CheckpointError as error:
        yield error.message
        return
    token, largest = _last(vocabulary)
    if largest >= num_rows:
        yield (
            f"{path}: model.vocab: {token!r} is {largest}, expected less than {num_rows}, the rows"
            f" of {embedding}"
        )


def warn_of_tokenizer(directory: Path, *, num_rows: int) -> None:
    """Log what a model can be converted with, but not be asked all it seems to know."""
    path = directory / "tokenizer.json"
    if not path.exists():
        log.warning("%s: no tokenizer.json; an engine built from this cannot read text", directory)
        return
    token, largest = _last(_tokens(path)[1])
    if largest >= num_rows:
        # Fine-tuned models often name a padding token they never use.
        log.warning(
            "%s: added_tokens: %r is %d, but the embedding has %d rows: prompts with such a token"
            " will be refused",
            *(path, token, largest, num_rows),
        )


def _last(tokens: dict[str, int]) -> tuple[str, int]:
    return max(tokens.items(), key=lambda item: item[1], default=("", -1))


def _tokens(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of a tokenizer.json's vocabulary and of its added tokens."""
    data = read_json(path)
    try:
        vocabulary: Any = data["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: pieces and scores
            vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
        added = {token["content"]: token["id"] for token in data.get("added_tokens", ())}
        if not all(type(number) is int for number in (*vocabulary.values(), *added.values())):
            raise TypeError("a token id that is no number")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: {error!r}, expected what tokenizers saves") from error
    return vocabulary, added
