"""A model's config.json, read by type and to the last key.

A family reads the settings it handles; what it did not read must be known to be harmless or be off,
otherwise the model would be converted into another one. Problems are collected, so that the user
sees all of them at once. Code a model brings along (`auto_map`) is never imported.
"""

import json
import logging
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from llmc.dtypes import WEIGHT_DTYPES
from llmc.errors import CheckpointError

log = logging.getLogger(__name__)

HF_CONFIG_NAME = "hf_config.json"
"""A model's config.json as a checkpoint keeps it, whose own config.json is TensorRT-LLM's."""

T = TypeVar("T", int, float, str, bool, dict[str, Any])

_HARMLESS = (
    # about the file or the training, not about what inference computes
    *("_*", "architectures", "auto_map", "model_type", "transformers*", "unsloth*", "torchscript"),
    *("initializer_range", "*dropout", "*_pdrop", "pretraining_tp", "use_cache", "torch_dtype"),
    *("dtype", "gradient_checkpointing", "chunk_size_feed_forward", "problem_type", "id2label"),
    *("summary_*", "task_specific_params", "n_ctx", "cache_implementation"),
    *("label2id", "num_labels", "output_*", "return_dict*", "name_or_path", "is_llama_config"),
    # generation settings, which old files keep here
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id"),
    *("cls_token_id", "max_length", "min_length", "do_sample", "early_stopping", "num_beams"),
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("num_return_sequences", "*no_repeat_ngram_size", "diversity_penalty", "num_beam_groups"),
)


class HfConfig:
    """config.json. `reasons` collects one line per setting that stands in the way."""

    __slots__ = ("path", "reasons", "_data", "_read")

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path = path
        self.reasons: list[str] = []
        self._data = data
        self._read: set[str] = set()

    @classmethod
    def open(cls, model_dir: Path) -> "HfConfig":
        """Read model_dir/config.json. Raises: CheckpointError when it is no JSON object."""
        path = model_dir / "config.json"
        return cls(path, read_json(path))

    @property
    def architecture(self) -> str | None:
        """The one entry of `architectures`; None, with a reason, when it is not exactly one."""
        value = self._data.get("architectures")
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            return value[0]
        self.refuse("architectures", value, "a list of one name")
        return None

    @property
    def has_remote_code(self) -> bool:
        return bool(self._data.get("auto_map"))

    @property
    def dtype(self) -> str | None:
        """The dtype the model was saved in, if said; until transformers 4 as `torch_dtype`."""
        value = self._data.get("dtype", self._data.get("torch_dtype"))
        if value is None:
            return None
        name = str(value).removeprefix("torch.")
        if name not in WEIGHT_DTYPES:
            self.refuse("dtype", value, f"one of {', '.join(WEIGHT_DTYPES)}")
            return None
        return name

    @property
    def token_ids(self) -> dict[str, Any]:
        """The bos, eos and pad ids present here, as generation_config.json spells them."""
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        return {key: self._data[key] for key in keys if self._data.get(key) is not None}

    def refuse(self, key: str, found: Any, wanted: str) -> None:
        """Note that setting `key` stands in the way."""
        self.reasons.append(f"{self.path}: {key}: {found!r}, expected {wanted}")

    def object(self, key: str) -> "HfConfig | None":
        """Return setting `key`, an object, to be read the same way; None when absent or null.

        What is noted there is noted here.
        """
        data = self.maybe(dict[str, Any], key)
        if data is None:
            return None
        config = HfConfig(Path(f"{self.path}: {key}"), data)
        config.reasons = self.reasons
        return config

    def raw(self, key: str) -> Any:
        """Return setting `key` of any type, None when absent; the caller checks it."""
        self._read.add(key)
        return self._data.get(key)

    def has(self, key: str) -> bool:
        """Say whether setting `key` is present and not null."""
        return self._data.get(key) is not None

    def require(self, kind: type[T], key: str) -> T:
        """Return setting `key`. Raises: CheckpointError when it is missing or of another type."""
        if not self.has(key):
            raise CheckpointError(f"{self.path}: {key}: missing, expected {kind.__name__}")
        return self._typed(kind, key)

    def count(self, key: str, default: int | None = None) -> int:
        """Return setting `key`, a number of at least 1; without a default it is required."""
        value = self.require(int, key) if default is None else self.optional(int, key, default)
        if value < 1:
            raise CheckpointError(f"{self.path}: {key}: {value}, expected at least 1")
        return value

    def maybe_count(self, key: str) -> int | None:
        """Return setting `key`, a number of at least 1, or None when it is absent or null."""
        return self.count(key) if self.has(key) else self.maybe(int, key)

    def optional(self, kind: type[T], key: str, default: T) -> T:
        """Return setting `key`, or `default` when it is absent or null."""
        self._read.add(key)
        return default if self._data.get(key) is None else self._typed(kind, key)

    def maybe(self, kind: type[T], key: str) -> T | None:
        """Return setting `key`, or None when it is absent or null."""
        self._read.add(key)
        return None if self._data.get(key) is None else self._typed(kind, key)

    def expect(self, key: str, wanted: Any) -> None:
        """Note a reason unless setting `key` is absent, null or `wanted`."""
        self._read.add(key)
        found = self._data.get(key)
        if found is not None and found != wanted:
            self.refuse(key, found, repr(wanted))

    def question_unread(self) -> None:
        """Note a reason for every setting that was not read, is not off and not known harmless."""
        for key, value in self._data.items():
            if key in self._read or any(fnmatchcase(key, pattern) for pattern in _HARMLESS):
                continue
            if value in (None, False, 0, "", [], {}):
                log.info("%s: %s: %r taken as off", self.path, key, value)
                continue
            self.refuse(key, value, "no such setting, as nothing here knows what it means")

    def _typed(self, kind: type[T], key: str) -> T:
        self._read.add(key)
        value = self._data[key]
        if kind is float and type(value) is int:
            value = float(value)
        # type() and not isinstance(): true is no number here.
        if type(value) is not (getattr(kind, "__origin__", None) or kind):
            raise CheckpointError(f"{self.path}: {key}: {value!r}, expected {kind.__name__}")
        # JSON as Python reads it has NaN and Infinity.
        if type(value) is float and not isfinite(value):
            raise CheckpointError(f"{self.path}: {key}: {value}, expected a finite number")
        typed: T = value
        return typed


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises: CheckpointError naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: a {type(data).__name__}, expected an object")
    return data
