"""Torch reference of `moe_routing`."""

import torch


def evaluate(
    logits: torch.Tensor,
    *,
    num_experts: int,
    top_k: int,
    scoring: str,
    num_groups: int,
    top_groups: int,
    group_score: str,
    renormalize: bool,
    renormalize_epsilon: float,
    scaling_factor: float,
    correction_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the chosen experts, then their weights, [T, 2 * top_k], computed in float32.

    Source: huggingface/transformers 5.24 models/{mixtral,qwen2_moe,deepseek_v2,deepseek_v3} and
    gpt_oss; the softmax of the chosen logits alone is the renormalized softmax of all.
    """
    assert logits.shape[1] == num_experts, logits.shape
    wide = logits.float()
    scores = wide.softmax(dim=1) if scoring == "softmax" else wide.sigmoid()
    choices = scores if correction_bias is None else scores + correction_bias.float()
    if top_groups < num_groups:
        grouped = choices.reshape(-1, num_groups, num_experts // num_groups)
        best = grouped.sort(dim=2, descending=True).values
        of_group = best[:, :, 0] if group_score == "max" else best[:, :, :2].sum(dim=2)
        kept = torch.zeros_like(of_group, dtype=torch.bool)
        kept.scatter_(1, _best(of_group, top_groups), True)
        grouped = grouped.masked_fill(~kept[:, :, None], -torch.inf)
        choices = grouped.reshape(-1, num_experts)
    experts = _best(choices, top_k)
    weights = scores.gather(1, experts)
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + renormalize_epsilon)
    return torch.cat([experts.float(), weights * scaling_factor], dim=1).to(logits.dtype)


def _best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the columns of the `count` largest, falling; torch.topk leaves ties open."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]
