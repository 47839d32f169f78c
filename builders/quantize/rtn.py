"""Round to nearest, scales from the weight alone, after the split to ranks.

In the portable layout W8A16 and W4A16 keep plain weights, and the target does this at build.
"""

from llmc.builders.quantize.rounding import tensors_of
from llmc.builders.quantize.site import Algorithm, Floats, Settings, Tensors
from llmc.quant.format import Choice, load_format


def quantize_weight(module: str, weight: Floats, settings: Settings) -> Tensors:
    """Round a rank's part [out, in] of the weight of `module`."""
    choice = Choice(
        module=module.rpartition(".")[2],
        dtype=settings.dtype,
        group_size=settings.group_size,
        clamp=settings.clamp,
    )
    elements = load_format(settings.algo).encode(weight, choice)
    return tensors_of(module, settings, choice, elements)


ALGORITHM = Algorithm(quantize_weight=quantize_weight)
