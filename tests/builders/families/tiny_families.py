"""A tiny random model of every family, made by transformers from a config.

Weights follow from their tensor's name, so no model is stored. The spread of matrices is ten times
the goldens': logits that differ, attention that is not uniform.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.goldens import golden

# Matrices this small only lose to a thread pool, most of all on a busy machine.
torch.set_num_threads(1)

LENGTH = 45
"""Tokens of a prompt: more than any window and any original length below."""

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 101,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MHA = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
_BARE = {key: value for key, value in _MHA.items() if key != "intermediate_size"}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2

_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}

_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
_DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model: its architecture, its config beside `sizes`, transformers' attention."""

    architecture: str
    model_type: str
    settings: dict[str, Any]
    sizes: dict[str, Any]
    attention: str = "eager"

    def config(self) -> Any:
        """Return transformers' config."""
        return transformers.AutoConfig.for_model(self.model_type, **self.sizes | self.settings)

    def model(self) -> Any:
        """Return transformers' model in eval mode."""
        config = self.config()
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=self.attention, dtype=torch.float32
        )
        assert type(model).__name__ == self.architecture, type(model)
        with torch.no_grad():
            for name, parameter in model.state_dict().items():
                values = golden.values(name, tuple(parameter.shape), "float32")
                spread = np.float32(10 if parameter.ndim > 1 else 1)
                parameter.copy_(torch.from_numpy(values * spread))
        return model.eval()


def _case(
    architecture: str, model_type: str, sizes: dict[str, Any] = _SIZES, **settings: Any
) -> Case:
    return Case(architecture=architecture, model_type=model_type, settings=settings, sizes=sizes)


CASES: dict[str, Case] = {
    "llama": _case("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True),
    "mistral": _case("MistralForCausalLM", "mistral", sliding_window=7, head_dim=24),
    "qwen2": _case("Qwen2ForCausalLM", "qwen2"),
    "qwen2-window": _case(
        "Qwen2ForCausalLM",
        "qwen2",
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=2,
        tie_word_embeddings=True,
    ),
    "qwen3": _case("Qwen3ForCausalLM", "qwen3", head_dim=24),
    "mixtral": _case("MixtralForCausalLM", "mixtral", **_EXPERTS, sliding_window=7),
    "qwen2_moe": _case(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        **_QWEN_EXPERTS,
        shared_expert_intermediate_size=32,
        mlp_only_layers=[2],
    ),
    "qwen3_moe": _case(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        **_QWEN_EXPERTS,
        head_dim=24,
        norm_topk_prob=True,
        decoder_sparse_step=2,
    ),
    "deepseek_v2": _case(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **_DEEPSEEK | {"num_experts_per_tok": 3},
        topk_method="group_limited_greedy",
        rope_parameters=_YARN,
    ),
    "deepseek_v2-lite": _case(
        "DeepseekV2ForCausalLM", "deepseek_v2", **_DEEPSEEK | {"q_lora_rank": None}
    ),
    "deepseek_v3": _case(
        "DeepseekV3ForCausalLM", "deepseek_v3", **_DEEPSEEK, rope_parameters=_YARN
    ),
    "gpt_oss": _case(
        "GptOssForCausalLM",
        "gpt_oss",
        **_EXPERTS,
        head_dim=24,
        sliding_window=7,
        layer_types=_ALTERNATING,
        swiglu_limit=0.5,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    ),
    "gemma": _case("GemmaForCausalLM", "gemma", head_dim=24),
    "gemma2": _case(
        "Gemma2ForCausalLM",
        "gemma2",
        head_dim=24,
        query_pre_attn_scalar=32,
        sliding_window=7,
        layer_types=_ALTERNATING,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": _case(
        "Gemma3ForCausalLM",
        "gemma3_text",
        head_dim=24,
        query_pre_attn_scalar=32,
        sliding_window=7,
        layer_types=_ALTERNATING,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
        },
    ),
    "phi3": _case("Phi3ForCausalLM", "phi3", sliding_window=7, original_max_position_embeddings=64),
    "phi3-longrope": _case(
        "Phi3ForCausalLM",
        "phi3",
        original_max_position_embeddings=16,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.25, 1.5, 1.75, 2.0, 2.25],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "original_max_position_embeddings": 16,
        },
    ),
    "cohere": _case("CohereForCausalLM", "cohere", use_qk_norm=True, logit_scale=0.5),
    "cohere2": _case(
        "Cohere2ForCausalLM",
        "cohere2",
        head_dim=16,
        sliding_window=7,
        layer_types=_ALTERNATING,
        logit_scale=0.5,
    ),
    # Its norm is over all KV heads, which four ranks must not share.
    "olmo2": _case("Olmo2ForCausalLM", "olmo2", num_key_value_heads=4),
    "granite": _case(
        "GraniteForCausalLM",
        "granite",
        embedding_multiplier=12.0,
        attention_multiplier=0.125,
        residual_multiplier=0.25,
        logits_scaling=8.0,
    ),
    "gpt2": Case(architecture="GPT2LMHeadModel", model_type="gpt2", settings={}, sizes=_GPT),
    "gptj": Case(
        architecture="GPTJForCausalLM",
        model_type="gptj",
        settings={"rotary_dim": 8, "n_inner": 96},
        sizes=_GPT,
    ),
    "gpt_bigcode": Case(
        architecture="GPTBigCodeForCausalLM", model_type="gpt_bigcode", settings={}, sizes=_GPT
    ),
    "gpt_bigcode-mha": Case(
        architecture="GPTBigCodeForCausalLM",
        model_type="gpt_bigcode",
        settings={"multi_query": False, "tie_word_embeddings": False},
        sizes=_GPT,
    ),
    "gpt_neox": _case(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        _MHA,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
    ),
    "gpt_neox-sequential": _case(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        _MHA,
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_fast",
    ),
    "starcoder2": _case("Starcoder2ForCausalLM", "starcoder2", sliding_window=7),
    "falcon-7b": _case("FalconForCausalLM", "falcon", _BARE, ffn_hidden_size=96),
    "falcon-40b": _case(
        "FalconForCausalLM",
        "falcon",
        _BARE,
        new_decoder_architecture=True,
        num_kv_heads=2,
        bias=True,
    ),
    "falcon-11b": _case(
        "FalconForCausalLM",
        "falcon",
        _BARE,
        new_decoder_architecture=True,
        num_kv_heads=2,
        num_ln_in_parallel_attn=1,
        tie_word_embeddings=False,
    ),
    "falcon-rw": Case(
        architecture="FalconForCausalLM",
        model_type="falcon",
        settings={"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
        sizes=_BARE,
        # transformers 5.24's eager attention adds Falcon's ALiBi twice.
        attention="sdpa",
    ),
    "bloom": _case("BloomForCausalLM", "bloom", _BARE),
    # Not a power of two: slopes of two sequences, the second rank's among them.
    "bloom-12": _case("BloomForCausalLM", "bloom", _BARE, hidden_size=96, n_head=12),
    "mpt": Case(
        architecture="MptForCausalLM",
        model_type="mpt",
        settings={"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.4}},
        sizes={"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 101},
    ),
    "opt": _case("OPTForCausalLM", "opt", _BARE, ffn_dim=96),
    "phi": _case("PhiForCausalLM", "phi"),
}


def write_case(directory: Path, name: str) -> tuple[Path, Any]:
    """Write the Hugging Face directory of a case, tokenizer included; return it and the model."""
    model = CASES[name].model()
    model.save_pretrained(directory)
    words = {f"w{index}": index for index in range(model.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory, model


def prompt(vocab_size: int) -> list[int]:
    """Return the token ids of a prompt of LENGTH."""
    ids: list[int] = np.random.default_rng(0).integers(3, vocab_size, LENGTH).tolist()
    return ids
