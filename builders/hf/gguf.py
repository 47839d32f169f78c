"""A GGUF file turned into a Hugging Face directory: dequantized weights, config and tokenizer.

Llama models with a byte-level BPE vocabulary; everything else is refused by name. Needs the `gguf`
package, which is in the extra of that name.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

import llmc
from llmc import artifacts
from llmc.builders.hf import gguf_tokenizer
from llmc.dtypes import numpy_dtype
from llmc.errors import CheckpointError, RecipeError, ToolchainError, UnsupportedError
from llmc.log import Progress
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter

# Source: llama.cpp gguf-py/gguf/tensor_mapping.py, architecture "llama".
_LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_STAGE = "huggingface"
_OTHER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """One tensor of the file under its Hugging Face name; `heads` > 0 marks a permuted q or k."""

    name: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]
    kind: Any
    heads: int


def import_gguf(file: Path, output: Path, *, dtype: str, progress: Progress) -> bool:
    """Write the model in `dtype`, its config, tokenizer and generation config to `output`.

    Returns False when `output` already is this file's import, intact. One tensor is dequantized at
    a time (float32: the peak is the embedding table's). Nothing stays behind when it fails.

    Raises: ToolchainError without the gguf package, CheckpointError for a broken file,
    UnsupportedError for an architecture, tokenizer or tensor this cannot convert, RecipeError when
    `output` holds something else.
    """
    gguf = _gguf()
    reader = _open(gguf, file)
    _check_replaceable(output)
    made_from: dict[str, Any] = {
        "stage": _STAGE,
        "inputs": {"gguf": artifacts.digest_file(file)},
        "recipe": {"dtype": dtype},
        "tools": {"llmc": llmc.__version__, "gguf": version("gguf")},
    }
    if artifacts.reusable(output, artifacts.stage_key(**made_from)):
        return False
    fields = {name: field.contents() for name, field in reader.fields.items()}
    reasons = _unsupported(fields) + gguf_tokenizer.unsupported_tokenizer(fields)
    if reasons:
        raise UnsupportedError(f"{file}: cannot be converted", reasons)
    tensors = list(_tensors(reader, fields))
    _check_complete(file, tensors, fields)
    config = _config(fields, dtype, tied=all(t.name != "lm_head.weight" for t in tensors))
    with artifacts.stage(output) as staging:
        infos = [TensorInfo(name=t.name, dtype=dtype, shape=t.shape) for t in tensors]
        path = staging / "model.safetensors"
        progress.start(f"dequantize {file.name}", sum(info.num_bytes for info in infos))
        with SafetensorsWriter(path, infos, {"format": "pt"}) as writer:
            for tensor, info in zip(tensors, infos, strict=True):
                writer.write(info.name, _dequantize(gguf, tensor).astype(numpy_dtype(dtype)))
                progress.advance(info.num_bytes)
        progress.finish()
        _write_json(staging, fields, config)
        artifacts.write_manifest(staging, **made_from)
    return True


def _check_replaceable(output: Path) -> None:
    """Refuse to replace a directory that no import made."""
    if not output.exists() or output.is_dir() and not any(output.iterdir()):
        return
    if (output / artifacts.MANIFEST_NAME).is_file():
        stage = artifacts.read_manifest(output).stage
        if stage == _STAGE:
            return
    raise RecipeError(
        f"{output}: exists and is no import of a GGUF file, expected a new or an empty directory",
        hint="choose another -o",
    )


def _write_json(staging: Path, fields: dict[str, Any], config: dict[str, Any]) -> None:
    max_length = config["max_position_embeddings"]
    generation = ("bos_token_id", "eos_token_id", "pad_token_id")
    for name, content in (
        ("config.json", config),
        ("generation_config.json", {key: config[key] for key in generation if key in config}),
        ("tokenizer.json", gguf_tokenizer.build_tokenizer(fields)),
        ("tokenizer_config.json", gguf_tokenizer.build_tokenizer_config(fields, max_length)),
    ):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (staging / name).write_text(text + "\n", encoding="utf-8")


def _gguf() -> ModuleType:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ToolchainError(
            "the gguf package: not installed, needed to read a GGUF file",
            hint="pip install 'llmc[gguf]'",
        ) from error
    module: ModuleType = gguf
    return module


def _open(gguf: ModuleType, file: Path) -> Any:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file, expected a GGUF file")
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{file}: {error}, expected a whole GGUF file") from error


def _unsupported(fields: dict[str, Any]) -> list[str]:
    arch = fields.get("general.architecture")
    if arch != "llama":
        return [f"general.architecture: {arch!r}, expected 'llama'"]
    reasons = [
        f"llama.{key}: missing"
        for key in (
            "block_count",
            "context_length",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        )
        if f"llama.{key}" not in fields
    ]
    if fields.get("llama.expert_count"):
        reasons.append(f"llama.expert_count: {fields['llama.expert_count']}, expected none")
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        reasons.append(f"llama.rope.scaling.type: {scaling!r}, expected 'none' or 'linear'")
    for name in ("head_count", "head_count_kv"):
        if isinstance(fields.get(f"llama.attention.{name}"), list):
            reasons.append(f"llama.attention.{name}: differs by layer, expected one number")
    return reasons


def _tensors(reader: Any, fields: dict[str, Any]) -> Iterator[_Tensor]:
    heads = fields["llama.attention.head_count"]
    kv_heads = fields.get("llama.attention.head_count_kv", heads)
    permuted = {"self_attn.q_proj.weight": heads, "self_attn.k_proj.weight": kv_heads}
    unknown = []
    for tensor in reader.tensors:
        name, role = _hf_name(tensor.name)
        if name is None:
            unknown.append(f"{tensor.name}: no Hugging Face counterpart known")
            continue
        yield _Tensor(
            name=name,
            shape=tuple(int(size) for size in reversed(tensor.shape)),
            data=tensor.data,
            kind=tensor.tensor_type,
            heads=permuted.get(role, 0),
        )
    if unknown:
        raise UnsupportedError("the GGUF holds tensors this cannot convert", unknown)


def _hf_name(name: str) -> tuple[str | None, str]:
    """Return the Hugging Face name (None: unknown) and, inside a layer, the name in the layer."""
    if name in _OTHER_TENSORS:
        return _OTHER_TENSORS[name], ""
    prefix, _, rest = name.partition(".")
    layer, _, tail = rest.partition(".")
    if prefix != "blk" or not layer.isdecimal() or tail not in _LAYER_TENSORS:
        return None, ""
    return f"model.layers.{layer}.{_LAYER_TENSORS[tail]}", _LAYER_TENSORS[tail]


def _check_complete(file: Path, tensors: list[_Tensor], fields: dict[str, Any]) -> None:
    have = {tensor.name for tensor in tensors}
    wanted = {"model.embed_tokens.weight", "model.norm.weight"} | {
        f"model.layers.{layer}.{tail}"
        for layer in range(fields["llama.block_count"])
        for tail in _LAYER_TENSORS.values()
    }
    missing = sorted(wanted - have)
    surplus = sorted(have - wanted - {"lm_head.weight"})
    if missing or surplus:
        problem = f"{missing[0]}: missing" if missing else f"{surplus[0]}: beyond block_count"
        raise CheckpointError(f"{file}: {problem} ({len(missing)} missing, {len(surplus)} surplus)")


def _dequantize(gguf: ModuleType, tensor: _Tensor) -> npt.NDArray[Any]:
    """Return float32 values in Hugging Face's row order.

    llama.cpp stores the rows of q and k so that its interleaved RoPE equals the rotation of halves.
    Source: llama.cpp convert_hf_to_gguf.py, LlamaModel.permute; this is its inverse.
    """
    try:
        values: npt.NDArray[Any] = gguf.quants.dequantize(tensor.data, tensor.kind)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"{tensor.name}: stored as {tensor.kind.name}, expected a type the gguf package decodes"
        ) from error
    values = values.reshape(tensor.shape)
    if not tensor.heads:
        return values
    halves = tensor.shape[0] // tensor.heads // 2
    pairs = values.reshape(tensor.heads, halves, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def _config(fields: dict[str, Any], dtype: str, *, tied: bool) -> dict[str, Any]:
    """Return config.json. Float32 metadata is printed as the shortest decimal that reads back."""
    heads = fields["llama.attention.head_count"]
    hidden = fields["llama.embedding_length"]
    scaling = None
    if fields.get("llama.rope.scaling.type") == "linear":
        factor = _shortest(fields["llama.rope.scaling.factor"])
        scaling = {"rope_type": "linear", "factor": factor}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": fields.get("llama.attention.key_length", hidden // heads),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(fields.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": scaling,
        "tie_word_embeddings": tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "torch_dtype": dtype,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            config[f"{role}_token_id"] = number
    return config


def _shortest(value: float) -> float:
    return float(str(np.float32(value)))
