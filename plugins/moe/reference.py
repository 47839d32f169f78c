"""Torch reference of `moe`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

from llmc.plugins.graph import OpCall
from llmc.plugins.linear.reference import evaluate as evaluate_linear
from llmc.plugins.linear.reference import round_input
from llmc.plugins.moe.stored import interpret_expert, stored_roles
from llmc.quant.format import decode

Stored = Sequence[npt.NDArray[Any]]
"""A role's stacked tensor, in a list of one."""
Weight = torch.Tensor | Stored


def evaluate(
    x: torch.Tensor,
    routing: torch.Tensor,
    *,
    hidden_size: int,
    intermediate_size: int,
    num_experts: int,
    first_expert: int,
    top_k: int,
    activation: str,
    alpha: float | None,
    limit: float | None,
    quant: str,
    stored_quantized: bool,
    layout: str | None,
    fc_weight: Weight,
    proj_weight: Weight,
    fc_bias: torch.Tensor | None = None,
    proj_bias: torch.Tensor | None = None,
    fc_per_channel_scale: Stored | None = None,
    fc_weights_scaling_factor: Stored | None = None,
    fc_activation_scaling_factor: Stored | None = None,
    proj_per_channel_scale: Stored | None = None,
    proj_weights_scaling_factor: Stored | None = None,
    proj_activation_scaling_factor: Stored | None = None,
) -> torch.Tensor:
    """Return this rank's part of the experts' sum, [T, hidden_size].

    Source: arXiv 2101.03961 and 2401.04088 (experts), openai/gpt-oss (clamped_swiglu).
    """
    assert x.shape[1] == hidden_size and routing.shape[1] == 2 * top_k, (x.shape, routing.shape)
    stored = {
        "fc_per_channel_scale": fc_per_channel_scale,
        "fc_weights_scaling_factor": fc_weights_scaling_factor,
        "fc_activation_scaling_factor": fc_activation_scaling_factor,
        "proj_per_channel_scale": proj_per_channel_scale,
        "proj_weights_scaling_factor": proj_weights_scaling_factor,
        "proj_activation_scaling_factor": proj_activation_scaling_factor,
    }

    def product(name: str, rows: torch.Tensor, weight: Weight, expert: int) -> torch.Tensor:
        if not stored_quantized:
            assert isinstance(weight, torch.Tensor)
            num_out, num_in = weight.shape[1:]
            return evaluate_linear(
                rows,
                weight=weight[expert],
                in_features=num_in,
                out_features=num_out,
                quant=quant,
            )
        assert not isinstance(weight, torch.Tensor)
        others = {role: arrays[0] for role, arrays in stored_roles(name, stored).items()}
        elements, rounding = interpret_expert(quant, layout, weight[0][expert], others, expert)
        matrix = torch.from_numpy(decode(elements))
        return torch.nn.functional.linear(round_input(rows.float(), rounding), matrix).to(x.dtype)

    chosen, weights = routing[:, :top_k].long() - first_expert, routing[:, top_k:]
    out = torch.zeros_like(x)
    for expert in range(num_experts):
        tokens, choices = torch.where(chosen == expert)
        fc = product("fc", x[tokens], fc_weight, expert)
        fc = fc if fc_bias is None else fc + fc_bias[expert]
        up, gate = fc[:, :intermediate_size], fc[:, intermediate_size:]
        proj = product("proj", _gated(activation, gate, up, alpha, limit), proj_weight, expert)
        proj = proj if proj_bias is None else proj + proj_bias[expert]
        out.index_add_(0, tokens, proj * weights[tokens, choices, None])
    return out


def gated_rows(
    x: torch.Tensor, routing: torch.Tensor, call: OpCall, weights: Mapping[str, torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yield, of each expert of `call` with tokens, what its second product reads.

    `weights` are plain tensors by role.
    """
    attrs: dict[str, Any] = call.attrs
    chosen = routing[:, : attrs["top_k"]].long() - attrs["first_expert"]
    for expert in range(attrs["num_experts"]):
        tokens, _ = torch.where(chosen == expert)
        if not len(tokens):
            continue
        bias = weights["fc_bias"][expert] if "fc_bias" in weights else None
        fc = torch.nn.functional.linear(x[tokens], weights["fc_weight"][expert], bias)
        up, gate = fc.chunk(2, dim=1)
        yield _gated(attrs["activation"], gate, up, attrs["alpha"], attrs["limit"])


def _gated(
    activation: str,
    gate: torch.Tensor,
    up: torch.Tensor,
    alpha: float | None,
    limit: float | None,
) -> torch.Tensor:
    if activation == "clamped_swiglu":
        assert alpha is not None and limit is not None
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + 1)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert activation == "silu", activation
    return torch.nn.functional.silu(gate) * up
