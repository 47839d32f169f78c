"""A tiny llama and its tokenizer, written to GGUF as llama.cpp's converter writes them."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = ["the quick brown fox jumps over 1234 lazy dogs — naïve café, 日本語 🙂\n\n\tend"] * 3
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def make_tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    return made


def make_model(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1234.5},
    )
    made: Any = LlamaForCausalLM(config)
    return made.eval()


def permuted(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """llama.cpp's order of q and k rows. Source: convert_hf_to_gguf.py, LlamaModel.permute."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, tokenizer: Tokenizer, **changes: Any) -> Path:
    """`changes`: arch, pre, quantize (a GGML type), drop (tensor), extra (tensor)."""
    writer = gguf.GGUFWriter(path, changes.get("arch", "llama"))
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1234.5)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([3 if token in SPECIAL else 1 for token, _ in vocab])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in gguf_tensors(model).items():
        if name == changes.get("drop"):
            continue
        if "quantize" in changes and tensor.ndim == 2:
            kind = changes["quantize"]
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    if "extra" in changes:
        writer.add_tensor(changes["extra"], np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(model: Any) -> dict[str, npt.NDArray[Any]]:
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    out = {}
    for name, value in model.state_dict().items():
        array = value.numpy()
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            role = NAMES[rest.removesuffix(".weight")]
            array = permuted(array, heads[role]) if role in heads else array
            out[f"blk.{layer}.{role}.weight"] = array
        else:
            top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
            out[top.get(name.removesuffix(".weight"), "output") + ".weight"] = array
    return out
