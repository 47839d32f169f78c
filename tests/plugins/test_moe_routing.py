"""Routing: the reference against transformers' routers, the kernel against the reference."""

from typing import Any

import numpy as np
import pytest
import torch

from llmc.plugins.graph import OpCall
from llmc.plugins.moe_routing.reference import evaluate
from tests.plugins.kernels_cpu import INSTRUCTION_SETS
from tests.plugins.lowered_cpu import LoweredCall

HIDDEN, EXPERTS = 32, 24

PLAIN: dict[str, Any] = {
    "num_experts": EXPERTS,
    "top_k": 4,
    "scoring": "softmax",
    "num_groups": 1,
    "top_groups": 1,
    "group_score": "max",
    "renormalize": False,
    "renormalize_epsilon": 0.0,
    "scaling_factor": 1.0,
}
KINDS: dict[str, dict[str, Any]] = {
    "mixtral": PLAIN | {"renormalize": True},
    "qwen2_moe": PLAIN,
    "gpt_oss": PLAIN | {"renormalize": True},
    "deepseek_v2": PLAIN | {"num_groups": 4, "top_groups": 2, "scaling_factor": 16.0},
    "deepseek_v3": PLAIN
    | {
        "scoring": "sigmoid",
        "num_groups": 4,
        "top_groups": 2,
        "group_score": "top2_sum",
        "renormalize": True,
        "renormalize_epsilon": 1e-20,
        "scaling_factor": 2.5,
    },
}


def router(kind: str) -> torch.nn.Module:
    """Return transformers' router of this kind with random weights and correction bias."""
    import transformers as hf
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

    common: dict[str, Any] = {"hidden_size": HIDDEN, "num_experts_per_tok": 4}
    local: dict[str, Any] = {"num_local_experts": EXPERTS}
    routed: dict[str, Any] = {"n_routed_experts": EXPERTS}
    grouped: dict[str, Any] = {"n_group": 4, "topk_group": 2}
    made: dict[str, Any] = {
        "mixtral": lambda: MixtralTopKRouter(hf.MixtralConfig(**common, **local)),
        "gpt_oss": lambda: GptOssTopKRouter(hf.GptOssConfig(**common, **local)),
        "qwen2_moe": lambda: Qwen2MoeTopKRouter(
            hf.Qwen2MoeConfig(**common, num_experts=EXPERTS, norm_topk_prob=False)
        ),
        "deepseek_v2": lambda: DeepseekV2TopkRouter(
            hf.DeepseekV2Config(
                **common,
                **routed,
                **grouped,
                topk_method="group_limited_greedy",
                routed_scaling_factor=16.0,
            )
        ),
        "deepseek_v3": lambda: DeepseekV3TopkRouter(
            hf.DeepseekV3Config(**common, **routed, **grouped, routed_scaling_factor=2.5)
        ),
    }
    module: torch.nn.Module = made[kind]()
    torch.manual_seed(0)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.normal_()
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_reference_equals_transformers(kind: str) -> None:
    module = router(kind)
    x = torch.randn(50, HIDDEN, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, weights, experts = module(x)
    correction = getattr(module, "e_score_correction_bias", None)
    found = evaluate(logits, correction_bias=correction, **KINDS[kind])
    # transformers leaves the order of the chosen open.
    for row in range(len(x)):
        theirs = dict(zip(experts[row].tolist(), weights[row].tolist(), strict=True))
        ours = dict(zip(found[row, :4].int().tolist(), found[row, 4:].tolist(), strict=True))
        assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_equals_reference(kind: str, instruction_set: str) -> None:
    """Many rows and few; among them ties, which go to the lower number, and huge logits."""
    draw = np.random.default_rng(3)
    logits = draw.standard_normal((700, EXPERTS)).astype(np.float32)
    logits[0], logits[1, ::2], logits[2] = 1.0, 2.0, logits[2] * 50
    tensors: dict[str, Any] = {}
    weights: dict[str, tuple[str, ...]] = {}
    if kind == "deepseek_v3":
        tensors = {"bias": draw.standard_normal(EXPERTS).astype(np.float32)}
        weights = {"correction_bias": ("bias",)}
    call = OpCall(
        plugin="moe_routing",
        name="it",
        inputs=("logits",),
        outputs=("y",),
        attrs=KINDS[kind],
        weights=weights,
    )
    lowered = LoweredCall(call, tensors, "float32")
    correction: Any = {role: torch.from_numpy(tensors[names[0]]) for role, names in weights.items()}
    wanted = evaluate(torch.from_numpy(logits), **KINDS[kind], **correction).numpy()
    for rows in (slice(0, 700), slice(0, 1), slice(2, 5)):
        found = lowered(instruction_set, logits[rows])
        np.testing.assert_array_equal(found[:, :4], wanted[rows, :4])
        np.testing.assert_allclose(found[:, 4:], wanted[rows, 4:], rtol=3e-6, atol=1e-30)
