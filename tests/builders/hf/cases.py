"""The table of what a model's files may say, and whether it is right or how it is refused."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.builders.hf import damages as d
from tests.builders.hf_models import shard_name, tiny_config, write_tiny

WEIGHTS, CONFIG = "model.safetensors: ", "config.json: "
BIASED = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True}
MISTRAL = {"architecture": "MistralForCausalLM"}
PROJECTION = "model.layers.0.self_attn.q_proj"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A tiny model saved with `saved`, then told it is `config`, then damaged.

    `refusals` are the texts of its error; without any it must be right, at tensor parallel `tp`.
    """

    name: str
    saved: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    damage: d.Damage = lambda directory: None
    shards: int = 1
    tp: int = 1
    dtype: str = "float32"
    refusals: tuple[str, ...] = ()

    def write(self, directory: Path) -> Path:
        saved = {"max_position_embeddings": 128, **self.saved}
        write_tiny(directory, tiny_config(**saved), num_shards=self.shards)
        told = json.dumps(tiny_config(**{**saved, **self.config}))
        (directory / "config.json").write_text(told)
        self.damage(directory)
        return directory


def right(name: str, **fields: Any) -> Case:
    return Case(name=name, **fields)


def wrong(name: str, *refusals: str, **fields: Any) -> Case:
    return Case(name=name, refusals=refusals, **fields)


def tokenizer(vocabulary: Any, *added: tuple[str, int]) -> dict[str, Any]:
    tokens = [{"id": number, "content": content} for content, number in added]
    return {"model": {"type": "BPE", "vocab": vocabulary}, "added_tokens": tokens}


BAD_ENDS: list[tuple[Any, str]] = [([2, 101], "101"), ("2", "'2'"), ([2, -1], "-1"), (True, "True")]
UNTIED = "lm_head.weight: missing (tie_word_embeddings is not set, so the model needs its own)"
CASES = [
    # the output tensor and the flag
    right("tied, no output tensor", saved=TIED),
    right("tied, an equal output tensor", saved=TIED, damage=d.with_output(equal=True)),
    wrong(
        "tied, another output tensor",
        f"{WEIGHTS}lm_head.weight: differs from model.embed_tokens.weight",
        saved=TIED,
        damage=d.with_output(equal=False),
    ),
    right("not tied", saved={"tie_word_embeddings": False}),
    wrong("not tied, no output tensor", UNTIED, damage=d.without(d.OUTPUT)),
    right("no word of ties", saved={"tie_word_embeddings": None}),
    wrong(
        "no word of ties, no output tensor",
        UNTIED,
        saved={"tie_word_embeddings": None},
        damage=d.without(d.OUTPUT),
    ),
    # biases
    right("biases", saved=BIASED),
    right("no biases", saved={"attention_bias": False, "mlp_bias": False}),
    wrong(
        "biases that the config denies",
        f"{WEIGHTS}{PROJECTION}.bias: not a tensor of LlamaForCausalLM",
        f"{WEIGHTS}model.layers.1.mlp.up_proj.bias: not a tensor of LlamaForCausalLM",
        saved=BIASED,
        config={"attention_bias": False, "mlp_bias": False},
    ),
    wrong(
        "biases that are not there",
        f"{PROJECTION}.bias: missing",
        "model.layers.1.mlp.up_proj.bias: missing",
        saved={"attention_bias": False, "mlp_bias": False},
        config=BIASED,
    ),
    # heads
    right("heads of a size of their own", saved={"head_dim": 24}),
    right("no word of the heads' size", saved={"head_dim": None}),
    wrong(
        "heads of another size than the tensors",
        f"{WEIGHTS}{PROJECTION}.weight: shape (64, 48), expected (128, 48)",
        config={"head_dim": 32},
    ),
    wrong(
        "a hidden size that the heads do not divide",
        f"{CONFIG}hidden_size: 48, expected a multiple of num_attention_heads 5, or head_dim",
        config={"head_dim": None, "num_attention_heads": 5},
    ),
    right("fewer KV heads than ranks", saved={"num_key_value_heads": 1}, tp=2),
    right("as many KV heads as ranks", tp=2),
    right("more ranks than KV heads", tp=4),
    wrong(
        "heads that ranks do not divide", "tp_size 3 does not divide num_attention_heads 4", tp=3
    ),
    wrong(
        "KV heads that ranks do not divide",
        "tp_size 2 neither divides num_key_value_heads 3",
        saved={"num_attention_heads": 6, "num_key_value_heads": 3},
        tp=2,
    ),
    wrong(
        "KV heads that do not divide the heads",
        f"{CONFIG}num_key_value_heads: 3, expected a divisor of num_attention_heads 4",
        config={"num_key_value_heads": 3},
    ),
    # windows
    right("no window", saved={**MISTRAL, "sliding_window": None}),
    right("a window", saved={**MISTRAL, "sliding_window": 32}),
    right("a window no prompt outgrows", saved={**MISTRAL, "sliding_window": 4096}),
    *(
        wrong(
            f"a window of {value!r}",
            f"{CONFIG}sliding_window: {value!r}, expected",
            saved=MISTRAL,
            config={"sliding_window": value},
        )
        for value in (0, -1, "32", 1.5, True)
    ),
    # the vocabulary
    right("a vocabulary that ranks do not divide", saved={"vocab_size": 101}, tp=2),
    right("a smaller tokenizer", damage=d.written("tokenizer.json", tokenizer({"a": 7}))),
    right(
        "a padding token no row is for",
        damage=d.written("tokenizer.json", tokenizer({"a": 0}, ("<pad>", 101))),
    ),
    wrong(
        "a larger tokenizer",
        "tokenizer.json: model.vocab: 'b' is 101, expected less than 101, the rows of"
        " model.embed_tokens.weight",
        damage=d.written("tokenizer.json", tokenizer({"a": 0, "b": 101})),
    ),
    wrong(
        "a larger tokenizer of pieces",
        "tokenizer.json: model.vocab: 'p101' is 101, expected less than 101",
        damage=d.written("tokenizer.json", tokenizer([[f"p{n}", 0.0] for n in range(102)])),
    ),
    wrong(
        "a tokenizer that is no JSON",
        "tokenizer.json: not JSON",
        damage=d.written("tokenizer.json", b"\xff"),
    ),
    wrong(
        "a tokenizer of something else",
        "tokenizer.json: KeyError('model'), expected what tokenizers saves",
        damage=d.written("tokenizer.json", {}),
    ),
    *(
        wrong(
            f"only {name}",
            f"{name}: no tokenizer.json beside it, expected one; write one with transformers",
            damage=d.written(name, b"\n"),
        )
        for name in ("tokenizer.model", "spiece.model", "vocab.json", "qwen.tiktoken")
    ),
    # token ids
    *(
        wrong(
            f"config.json ends with {value!r}",
            f"{CONFIG}eos_token_id: {bad}, expected a token id below 101",
            config={"eos_token_id": value},
        )
        for value, bad in BAD_ENDS
    ),
    *(
        wrong(
            f"generation_config.json ends with {value!r}",
            f"generation_config.json: eos_token_id: {bad}, expected a token id below 101",
            damage=d.written("generation_config.json", {"eos_token_id": value}),
        )
        for value, bad in BAD_ENDS
    ),
    right("several ends", config={"eos_token_id": [2, 5]}),
    # shards
    right("shards", shards=3),
    right("a shard of an earlier save", shards=3, damage=d.stale_shard),
    right("shards of an earlier save", damage=d.stale_shards),
    wrong(
        "a missing shard",
        f"{shard_name(1, 3)}: missing shard, which holds model.",
        shards=3,
        damage=d.removed(shard_name(1, 3)),
    ),
    wrong(
        "a truncated shard",
        f"{shard_name(2, 3)}: truncated at model.",
        shards=3,
        damage=d.truncated(shard_name(2, 3)),
    ),
    wrong(
        "a tensor in two shards",
        f"{d.UP}: also in ",
        shards=3,
        damage=d.twice,
    ),
    wrong(
        "an index of tensors that are not there",
        f"{shard_name(0, 3)}: model.layers.9.x: not in this shard, as {d.INDEX} promises",
        shards=3,
        damage=d.indexed(shard_name(0, 3), "model.layers.9.x"),
    ),
    wrong(
        "an index of shards elsewhere",
        f"{d.INDEX}: {d.UP}: shard '../a.safetensors', expected a file name",
        shards=3,
        damage=d.indexed("../a.safetensors", d.UP),
    ),
    wrong(
        "an index that is no JSON", f"{d.INDEX}: not JSON", shards=3, damage=d.written(d.INDEX, "{")
    ),
    wrong(
        "no index",
        "neither model.safetensors nor model.safetensors.index.json",
        shards=3,
        damage=d.removed(d.INDEX),
    ),
    wrong("a truncated file", f"{WEIGHTS}truncated at ", damage=d.truncated("model.safetensors")),
    # types
    right(
        "norms in float32 among bfloat16",
        saved={"torch_dtype": "bfloat16"},
        damage=d.as_dtype("_proj", ml_dtypes.bfloat16),
    ),
    wrong(
        "a weight of integers",
        f"{WEIGHTS}{d.UP}: dtype int64, expected one of float32, float16, bfloat16",
        damage=d.as_dtype(d.UP, np.int64),
    ),
    wrong(
        "a weight of doubles",
        f"{WEIGHTS}{d.UP}: dtype float64, expected one of float32, float16, bfloat16",
        damage=d.as_dtype(d.UP, np.float64),
    ),
    wrong(
        "a type of the future", f"{WEIGHTS}{d.UP}: dtype 'F99', expected", damage=d.unknown_dtype
    ),
    # tensors
    right(
        "known leftovers",
        damage=d.with_zeros("model.layers.0.self_attn.rotary_emb.inv_freq", 8),
    ),
    wrong(
        "an unknown tensor",
        f"{WEIGHTS}model.layers.0.surprise.weight: not a tensor of LlamaForCausalLM",
        damage=d.with_zeros("model.layers.0.surprise.weight", 3),
    ),
    wrong("a missing tensor", f"{d.UP}: missing", damage=d.without(d.UP)),
    # values
    *(
        wrong(
            f"a {value} for {dtype}, tp {tp}",
            f"{WEIGHTS}{d.UP}: {value} at [5, 7], expected a finite number",
            damage=d.with_value(d.UP, value),
            dtype=dtype,
            tp=tp,
        )
        for value in (float("nan"), float("-inf"))
        for dtype, tp in (("float32", 1), ("bfloat16", 2))
    ),
    wrong(
        "more than float16 holds",
        f"{WEIGHTS}{d.UP}: 70000 at [5, 7], expected at most 65504 as the dtype is float16",
        damage=d.with_value(d.UP, 70000.0),
        dtype="float16",
    ),
    # config.json itself
    wrong("no config", "config.json: cannot be read", damage=d.removed("config.json")),
    wrong(
        "a config in UTF-16",
        f"{CONFIG}not JSON: 'utf-8' codec",
        damage=d.written("config.json", b"\xff\xfe{\0"),
    ),
    wrong("a config that is no JSON", f"{CONFIG}not JSON", damage=d.written("config.json", "{")),
    wrong("a config too deep", f"{CONFIG}not JSON", damage=d.written("config.json", "[" * 100_000)),
    wrong(
        "a config that is a list",
        f"{CONFIG}a list, expected an object",
        damage=d.written("config.json", [1]),
    ),
    *(
        wrong(f"{key} {value!r}", f"{CONFIG}{key}: {value!r}, expected", config={key: value})
        for key, value in (
            ("hidden_size", "48"),
            ("hidden_size", 48.0),
            ("num_hidden_layers", 0),
            ("num_hidden_layers", True),
            ("rms_norm_eps", "1e-5"),
            ("rms_norm_eps", float("nan")),
            ("rope_scaling", 5),
            ("tie_word_embeddings", 1),
            ("architectures", "LlamaForCausalLM"),
            ("architectures", []),
        )
    ),
]
