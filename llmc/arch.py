"""The decoder architecture as data: everything that tells one supported model from another.

Field names are TensorRT-LLM's config.json names where it has them. A family file fills this from
the Hugging Face config; the checkpoint stores it; the network is built from it and nothing else.
Defaults are Llama's: a family names what it does differently.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

NormType = Literal["rms_norm", "layer_norm"]
NormPlacement = Literal["pre", "post", "sandwich"]
MlpType = Literal["gated", "gated_fused", "plain"]
QkNorm = Literal["head", "per_head", "full"]
LayerRope = Literal["global", "local", "none"]
Scoring = Literal["softmax", "sigmoid"]
GroupScore = Literal["max", "top2_sum"]

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Hugging Face's and TensorRT-LLM's name of an activation → that of our ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeArch:
    """The mixture-of-experts MLP of a model, in every layer but `dense_layers`.

    `intermediate_size` is one expert's. `scoring`: "softmax" or "sigmoid" over all experts before
    the best `top_k` are taken. `renormalize` divides their scores by their sum (of a softmax: that
    of their logits alone), and then `routed_scaling_factor` multiplies them. With `num_groups` >
    1 experts are taken from the best `top_groups` groups only, which rank by `group_score`.
    `score_correction_bias` is added to the scores for choosing, not for weighing. A shared expert
    (size 0: none) sees every token; `shared_expert_gate` weighs it by a sigmoid. `expert_bias` and
    `router_bias` say which biases there are. `swiglu_limit` clamps both halves, and then the
    activation is gate * sigmoid(`swiglu_alpha` * gate) * (up + 1).
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    scoring: Scoring = "softmax"
    renormalize: bool = True
    routed_scaling_factor: float = 1.0
    score_correction_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: GroupScore = "max"
    shared_expert_intermediate_size: int = 0
    shared_expert_gate: bool = False
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False
    expert_bias: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaArch:
    """Multi-head latent attention: keys and values come from one latent row per token.

    Ranks are columns of the latents; `q_lora_rank` None: queries come straight from the hidden
    state. A head's query and key have `qk_nope_head_dim` columns without a position and
    `qk_rope_head_dim` that rotate, its value `v_head_dim`.
    Source: DeepSeek-V2, arXiv 2405.04434.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArch:
    """One decoder-only model.

    Norms: `norm_placement` "pre" norms the input of a block, "post" its output before the residual
    is added, "sandwich" both. With `parallel_attention` attention and MLP read the same hidden
    state and both are added to it; `parallel_norms` 2 gives each a norm of its own. `norm_epsilon`
    is that of every norm. `mlp_norm` is the checkpoint's name for the norm before the MLP.
    `embedding_norm` norms the embedding.

    Biases: `attn_bias` is attention.qkv's, `dense_bias` attention.dense's, `mlp_bias` the MLP's.

    Attention: `qk_norm` norms q and k before they rotate, with `norm_type`: one weight for all
    heads ("head"), one per head ("per_head"), or over all heads together ("full"). `clip_qkv`
    clamps qkv. `attention_scale` multiplies q @ k (None: head_size ** -0.5). `sliding_window` is
    the number of most recent positions a token attends to, itself included (None: all);
    `layer_windows` gives it layer by layer. `layer_ropes` likewise: "local" layers rotate by
    `rotary_base_local` without scaling, "none" do not rotate. `rotary_scaling` is the Hugging Face
    dict verbatim, as TensorRT-LLM keeps it.

    MLP: "gated" has mlp.fc (the activated half) and mlp.gate; "gated_fused" has both in mlp.fc, the
    activated half second; "plain" has no gate. `hidden_act` is TensorRT-LLM's name, `activation`
    that of our ops, which tell "gelu" (erf) from "gelu_tanh".

    Scales: the embedding is multiplied by `embedding_scale`, each block's output by
    `residual_scale`, the logits by `logits_scale`.

    config.json: `family_settings` are the family's further keys, verbatim; `left_out` names the
    common keys it does not have.
    """

    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str = "silu"
    activation: str = "silu"
    norm_type: NormType = "rms_norm"
    norm_bias: bool = False
    norm_epsilon: float = 1e-5
    norm_placement: NormPlacement = "pre"
    parallel_attention: bool = False
    parallel_norms: int = 1
    mlp_norm: str = "post_layernorm"
    embedding_norm: bool = False
    position_embedding_type: str = "rope_gpt_neox"
    rotary_base: float = 10000.0
    rotary_base_local: float | None = None
    rotary_embedding_dim: int
    rotary_scaling: dict[str, Any] | None = None
    layer_ropes: tuple[LayerRope, ...] | None = None
    attn_bias: bool = False
    dense_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: QkNorm | None = None
    clip_qkv: float | None = None
    attention_scale: float | None = None
    attn_logit_softcapping: float | None = None
    attention_sinks: bool = False
    sliding_window: int | None = None
    layer_windows: tuple[int | None, ...] | None = None
    mlp_type: MlpType = "gated"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    final_logit_softcapping: float | None = None
    tie_word_embeddings: bool = False
    moe: MoeArch | None = None
    mla: MlaArch | None = None
    family_settings: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def window(self, layer: int) -> int | None:
        """Return how many recent positions a token of `layer` attends to; None: all."""
        return self.sliding_window if self.layer_windows is None else self.layer_windows[layer]

    def rope(self, layer: int) -> LayerRope:
        """Return which rotation the heads of `layer` take."""
        return "global" if self.layer_ropes is None else self.layer_ropes[layer]

    def has_experts(self, layer: int) -> bool:
        """Say whether the MLP of `layer` is a mixture of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers
