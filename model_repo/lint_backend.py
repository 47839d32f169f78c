"""What TensorRT-LLM's backend makes of parameters together, which none of them tells alone.

Source: NVIDIA/TensorRT-LLM 1.2.0rc8, triton_backend/inflight_batcher_llm/src/
model_instance_state.cc: what it throws for, and what it drops with a warning in the log.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmc.model_repo.engine_config import Engine
from llmc.model_repo.lint_parameters import values_of
from llmc.model_repo.parameters import BOOLEANS

_READ_ALWAYS = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
"""Keys since 0.19 without which the model does not load; a value they need not have."""

_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_OF_MODE = {"medusa_choices": "medusa", "eagle_choices": "eagle"}


def check_backend(config: Any, engine: Engine | None) -> Iterator[str]:
    """Yield what a model of the C++ backend would refuse, or ignore."""
    if config.backend != "tensorrtllm":
        return
    values = values_of(config)
    if engine is None or engine.version is None or engine.version >= (0, 19):
        for key in _READ_ALWAYS:
            if key not in config.parameters:
                yield f"parameters.{key}: missing, the backend does not load without it, even empty"
    for key in ("gpt_model_path", "encoder_model_path"):
        if key in values and not Path(values[key]).is_absolute():
            yield (
                f"parameters.{key}: {values[key]!r} is relative, and the backend looks for it from"
                " the server's working directory"
            )
    yield from _check_decoding(values)
    yield from _check_lora(values, engine)
    fast = values.get("speculative_decoding_fast_logits", "")
    if BOOLEANS.get(fast) and "participant_ids" not in values:
        yield (
            "parameters.speculative_decoding_fast_logits: true, but ranks without participant_ids"
            " are spawned, and have none"
        )


def _check_decoding(values: dict[str, str]) -> Iterator[str]:
    mode = values.get("decoding_mode", "")
    missing = [key for key in _LOOKAHEAD if key not in values]
    if mode == "lookahead" and missing:
        yield f"parameters.decoding_mode: lookahead needs {', '.join(missing)}"
    wanted = _OF_MODE | dict.fromkeys(_LOOKAHEAD, "lookahead")
    for key, its_mode in wanted.items():
        if key in values and mode != its_mode:
            found = mode or "not given"
            yield f"parameters.{key}: only with decoding_mode {its_mode}, it is {found}"
    guided = [key for key in _READ_ALWAYS[1:] if key in values]
    if len(guided) == 1:
        (other,) = set(_READ_ALWAYS[1:]) - set(guided)
        yield f"parameters.{guided[0]}: guided decoding stays off without {other}"


def _check_lora(values: dict[str, str], engine: Engine | None) -> Iterator[str]:
    given = [key for key in values if key.startswith("lora_")]
    built = engine.plugins.get("lora_plugin", "unknown") if engine is not None else "unknown"
    if given and not built:
        yield f"parameters.{given[0]}: needs an engine built with lora_plugin"
