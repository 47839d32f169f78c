"""Quantizes the experts of a layer, each by itself, from what calibration saw of them all.

The scale of an input is shared by all experts, as the checkpoint has one: that of every token that
came, and of every gated product any expert made. So an expert that no token went to is quantized
like the others, by its own weights and the shared scale.
"""

import numpy as np
import numpy.typing as npt

from llmc.builders.quantize.observers import ExpertsObserver
from llmc.builders.quantize.site import (
    Algorithm,
    Floats,
    InputStats,
    Module,
    Settings,
    Site,
    Tensors,
)
from llmc.quant.format import EXPERTS_SHARE


def quantize_experts(
    algorithm: Algorithm,
    settings: Settings,
    weights: dict[str, Floats],
    observer: ExpertsObserver,
) -> Tensors:
    """Return the tensors of modules "….mlp.fc" and "….mlp.proj", stacked over the experts.

    `weights` are theirs by module, [E, out, in].
    """
    assert algorithm.quantize is not None, settings.algo
    tensors: Tensors = {}
    for module, amax in zip(weights, (observer.input_amax, observer.gated_amax), strict=True):
        made: list[Tensors] = []
        for weight in weights[module]:
            site = Site(
                modules=(
                    Module(name=module, weight=weight, parts=(len(weight),), output_amax=None),
                ),
                stats=_stats(amax, weight.shape[1], observer.num_tokens),
            )
            made.append(algorithm.quantize(site, settings))
        for name, first in made[0].items():
            is_shared = name.rpartition(".")[2] in EXPERTS_SHARE
            tensors[name] = first if is_shared else np.stack([one[name] for one in made])
    return tensors


def _stats(amax: float, num_in: int, num_tokens: int) -> InputStats:
    """Return what is known of an input: its largest magnitude, in whichever column."""
    columns: npt.NDArray[np.float32] = np.full(num_in, amax, np.float32)
    return InputStats(
        num_tokens=num_tokens,
        amax=columns,
        mean_abs=columns,
        rows=np.zeros((0, num_in), np.float32),
        hessian=None,
    )
