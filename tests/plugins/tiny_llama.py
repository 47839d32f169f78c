"""Tiny random llamas and their checkpoint tensors per rank, written out by hand from the format.

Deliberately not through builders.convert: what is tested here does not rest on it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from llmc.arch import ModelArch
from llmc.checkpoint import CheckpointConfig, Quantization, tensor_specs
from llmc.mapping import Mapping

# Matrices this small only lose to a thread pool, most of all on a busy machine.
torch.set_num_threads(1)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 16,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}

VARIANTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mqa": {"num_key_value_heads": 1},
    "mha": {"num_key_value_heads": 4},
    "explicit_head_dim": {"head_dim": 24},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "both_biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "rope_linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "rope_llama3": {"rope_parameters": LLAMA3},
    "rope_yarn": {"rope_parameters": YARN},
    "rope_longrope": {"rope_parameters": LONGROPE},
    "rope_dynamic": {"rope_parameters": DYNAMIC, "max_position_embeddings": 16},
    "odd_vocabulary": {"vocab_size": 97},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyLlama:
    """A model in eval mode and what its checkpoint would hold before any split."""

    model: Any
    arch: ModelArch

    @classmethod
    def make(cls, **changes: Any) -> "TinyLlama":
        """Build one; `changes` are LlamaConfig fields (rope_theta is filled in)."""
        rope = {"rope_type": "default", "rope_theta": 500.0} | changes.pop("rope_parameters", {})
        settings = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 128,
            "max_position_embeddings": 64,
            # Ten times the usual spread: logits that differ, attention that is not uniform.
            "initializer_range": 0.2,
        }
        config: Any = LlamaConfig(**settings | changes, rope_parameters=rope)
        torch.manual_seed(1)
        model: Any = LlamaForCausalLM(config)
        model.eval()
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name.endswith("bias"):
                    value.normal_(0, 0.2)
                elif "norm" in name:
                    value.normal_(1, 0.1)
        scaling = None if rope["rope_type"] == "default" else rope
        arch = ModelArch(
            architecture="LlamaForCausalLM",
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_size=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            norm_epsilon=config.rms_norm_eps,
            rotary_base=rope["rope_theta"],
            rotary_embedding_dim=config.head_dim,
            rotary_scaling=scaling,
            attn_bias=config.attention_bias,
            dense_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
            tie_word_embeddings=config.tie_word_embeddings,
        )
        return cls(model=model, arch=arch)

    def config(self, *, tp: int = 1, pp: int = 1, quant: str | None = None, **more: Any) -> Any:
        return CheckpointConfig(
            arch=self.arch,
            dtype="float32",
            mapping=Mapping(tp_size=tp, pp_size=pp),
            quantization=Quantization(quant_algo=quant),
            **more,
        )

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return transformers' logits [len(token_ids), vocab]."""
        self.forget_lengths()
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([token_ids])).logits[0]
        return logits

    def forget_lengths(self) -> None:
        """Undo what transformers keeps of earlier sequences.

        Its dynamic NTK goes on with the angles of the longest until a short one comes.
        """
        if (self.arch.rotary_scaling or {}).get("rope_type") == "dynamic":
            with torch.no_grad():
                self.model(torch.tensor([[0]]))

    def rank_tensors(self, config: CheckpointConfig, rank: int) -> dict[str, npt.NDArray[Any]]:
        """Return what rank<rank>.safetensors holds."""
        mapping = config.mapping.at(rank)
        tensors = {}
        first = mapping.stage_layers(self.arch.num_hidden_layers).start
        for spec in tensor_specs(config, rank):
            whole = self._whole(spec.name)
            assert whole.shape == spec.shape, (spec, whole.shape)
            if spec.axis is not None:
                parts, offset = [], 0
                for segment in spec.segments:
                    start, stop = segment.span(mapping.tp_rank, mapping.tp_size)
                    part = whole.take(range(offset + start, offset + stop), axis=spec.axis)
                    short = segment.local_length(mapping.tp_size) - (stop - start)
                    padding = [(0, short if axis == spec.axis else 0) for axis in range(part.ndim)]
                    parts.append(np.pad(part, padding))
                    offset += segment.length
                whole = np.concatenate(parts, axis=spec.axis)
            tensors[spec.local_name(first)] = whole
        return tensors

    def _whole(self, name: str) -> npt.NDArray[Any]:
        state: dict[str, npt.NDArray[Any]] = {
            key: value.numpy() for key, value in self.model.state_dict().items()
        }
        if name == "transformer.vocab_embedding.weight":
            return state["model.embed_tokens.weight"]
        if name in ("transformer.ln_f.weight", "lm_head.weight"):
            return state["lm_head.weight" if name == "lm_head.weight" else "model.norm.weight"]
        layer, module, part = _split_name(name)
        sources = {
            "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attention.dense": ("self_attn.o_proj",),
            "mlp.fc": ("mlp.gate_proj",),
            "mlp.gate": ("mlp.up_proj",),
            "mlp.proj": ("mlp.down_proj",),
            "input_layernorm": ("input_layernorm",),
            "post_layernorm": ("post_attention_layernorm",),
        }[module]
        found = [state[f"model.layers.{layer}.{source}.{part}"] for source in sources]
        return np.concatenate(found)


def _split_name(name: str) -> tuple[int, str, str]:
    """transformer.layers.3.mlp.fc.weight → (3, "mlp.fc", "weight")"""
    _, _, layer, rest = name.split(".", 3)
    module, _, part = rest.rpartition(".")
    return int(layer), module, part
