"""Torch reference of `allgather`, over the ranks of a group at once."""

from collections.abc import Sequence

import torch


def evaluate(
    xs: Sequence[torch.Tensor],
    *,
    rows: str,
    local_columns: int,
    num_columns: int,
    group: tuple[int, ...],
) -> list[torch.Tensor]:
    """Return, for each rank of `group`, all columns in group order cut to `num_columns`."""
    assert len(xs) == len(group) and xs[0].shape[-1] == local_columns, (len(xs), group)
    gathered = torch.cat(list(xs), dim=-1)[:, :num_columns]
    return [gathered.clone() for _ in group]
