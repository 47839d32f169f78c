"""Writes a tiny random Llama as Hugging Face would, tokenizer included, in numpy alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_model(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write config, weights and tokenizer into a new `directory`; `changes` are config fields."""
    directory.mkdir(parents=True)
    config = CONFIG | changes
    generator = np.random.default_rng(seed)
    infos = [
        TensorInfo(name=name, dtype="float32", shape=shape)
        for name, shape in _shapes(config).items()
    ]
    with SafetensorsWriter(directory / "model.safetensors", infos, {"format": "pt"}) as writer:
        for info in infos:
            if info.name.endswith("norm.weight"):
                writer.write(info.name, np.ones(info.shape, np.float32))
            else:
                values = generator.standard_normal(info.shape, dtype=np.float32)
                writer.write(info.name, values * np.float32(0.1))
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    words = {f"w{index}": index for index in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "w1"}))
    return directory


def flip_weight_byte(directory: Path) -> None:
    """Change the last byte of the weights by one bit of a mantissa; size and headers stay."""
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        (byte,) = file.read(1)
        file.seek(-4, 2)
        file.write(bytes([byte ^ 1]))


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}mlp.up_proj.weight": (inner, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, inner),
        }
    return shapes | {
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
