"""One random draw from softmax(row), restricted by top-k, top-p and min-p, without a full sort.

Each restriction keeps the most likely tokens, so what survives is a prefix of the tokens in
descending order; ties go to the lower id. A sort of 50,000 values costs milliseconds: a cheap pass
first finds a few candidates that certainly contain the prefix, and only those are sorted.
"""

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.intp]

_GROUP = 64
"""Tokens per group when maxima or sums of groups narrow the search. Group j of G holds the tokens
j, j + G, j + 2 G, …: so laid out, numpy reduces all groups at once with vector instructions."""
_MARGINS = (3.0, 6.0, 12.0)
"""Logit distances from the maximum tried in turn for a nucleus: mass concentrates near the top."""


def draw(row: FloatArray, uniform: float, *, top_k: int | None, top_p: float, min_p: float) -> int:
    """Return the token of `row` [V] that `uniform`, in [0, 1), selects.

    `row` has a finite maximum; -inf marks banned tokens. `top_p` 1.0 and `min_p` 0.0 are off.
    """
    peak = row.max()
    total = None
    if top_k is not None and top_k < row.shape[0]:
        candidates = _top_k(row, top_k)
    elif top_p < 1.0:
        total = float(np.exp(row - peak).sum(dtype=np.float64))
        candidates = _nucleus(row, peak, top_p * total)
    elif min_p > 0.0:
        candidates = np.flatnonzero(row >= peak + np.float32(math.log(min_p)))
    else:
        return _draw_unrestricted(row, peak, uniform)
    # Stable, and candidates of equal value are in ascending order.
    candidates = candidates[np.argsort(-row[candidates], kind="stable")]
    weights = np.exp((row[candidates] - peak).astype(np.float64))
    cumulative = weights.cumsum()
    count = len(candidates)
    if top_p < 1.0:
        mass = cumulative[-1] if total is None else total
        count = min(count, int(cumulative.searchsorted(top_p * mass)) + 1)
    if min_p > 0.0:
        # Weights are relative to the maximum already; the maximum itself always stays.
        count = max(1, min(count, int((weights >= min_p).sum())))
    index = int(cumulative[:count].searchsorted(uniform * cumulative[count - 1], side="right"))
    return int(candidates[min(index, count - 1)])


def _top_k(row: FloatArray, k: int) -> IntArray:
    """Return the `k` largest tokens of `row`; of equal ones the lower ids.

    The k largest values lie in the k groups with the largest maxima.
    """
    num_groups = row.shape[0] // _GROUP
    if k >= num_groups // 4:
        return _largest(row, np.arange(row.shape[0]), k)
    maxima = row[: num_groups * _GROUP].reshape(_GROUP, num_groups).max(axis=0)
    # Every group whose maximum equals the k-th largest is kept: a tie is for _largest to break.
    groups = np.flatnonzero(maxima >= np.partition(maxima, num_groups - k)[num_groups - k])
    ids = (np.arange(0, num_groups * _GROUP, num_groups)[:, None] + groups).ravel()
    rest = np.arange(num_groups * _GROUP, row.shape[0])
    return _largest(row, np.concatenate([ids, rest]), k)


def _largest(row: FloatArray, ids: IntArray, k: int) -> IntArray:
    """Return the `k` largest of `ids` (ascending), equal values in ascending order of ids."""
    values = row[ids]
    threshold = np.partition(values, len(ids) - k)[len(ids) - k]
    above = ids[values > threshold]
    equal = ids[values == threshold]
    return np.concatenate([above, equal[: k - len(above)]])


def _nucleus(row: FloatArray, peak: np.float32, wanted: float) -> IntArray:
    """Return tokens that contain the smallest set of weight, sum of exp(row - peak), `wanted`."""
    for margin in _MARGINS:
        ids = np.flatnonzero(row >= peak - np.float32(margin))
        if np.exp((row[ids] - peak).astype(np.float64)).sum() >= wanted:
            return ids
    return np.arange(row.shape[0])


def _draw_unrestricted(row: FloatArray, peak: np.float32, uniform: float) -> int:
    """Draw from the whole vocabulary: by the sums of groups first, then within one group."""
    weights = np.exp(row - peak)
    num_groups = weights.shape[0] // _GROUP
    head = weights[: num_groups * _GROUP].reshape(_GROUP, num_groups)
    rest = weights[num_groups * _GROUP :]
    sums = np.append(head.sum(axis=0, dtype=np.float64), rest.sum(dtype=np.float64))
    cumulative = sums.cumsum()
    wanted = uniform * cumulative[-1]
    group = min(int(cumulative.searchsorted(wanted, side="right")), int(sums.nonzero()[0][-1]))
    members = head[:, group] if group < num_groups else rest
    within = members.cumsum(dtype=np.float64)
    before = cumulative[group - 1] if group else 0.0
    index = int(within.searchsorted(wanted - before, side="right"))
    # Rounding may put `wanted` past the end of the group: its last possible token is meant.
    index = min(index, int(members.nonzero()[0][-1]))
    token = group + index * num_groups if group < num_groups else num_groups * _GROUP + index
    return int(token)
