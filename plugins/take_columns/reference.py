"""Torch reference of `take_columns`."""

import torch


def evaluate(
    x: torch.Tensor, *, groups: int, group_size: int, start: int, count: int
) -> torch.Tensor:
    """Return columns [start, start + count) of each group, [T, groups * count]."""
    grouped = x.reshape(x.shape[0], groups, group_size)
    return grouped[:, :, start : start + count].reshape(x.shape[0], -1)
