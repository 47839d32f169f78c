"""AWQ as AutoAWQ writes it (version gemm).

Eight codes of 4 bits to an int32 along out, columns in the order 0, 2, 4, 6, 1, 3, 5, 7 from the
lowest bits: qweight [in, out/8], qzeros [groups, out/8]; scales [groups, out]. Scales of the inputs
are folded into the norms already.

Source: AutoAWQ 0.2.9 awq/modules/linear/gemm.py (from_linear), awq/models/_config.py.
"""

from collections.abc import Sequence

import numpy as np

from llmc.arch import ModelArch
from llmc.builders.hf.config import HfConfig
from llmc.builders.hf.prequantized import fusing
from llmc.builders.hf.prequantized.scheme import (
    FLOATS,
    Array,
    Scheme,
    Source,
    Stored,
    Tensors,
    grouped_size,
    strings,
)
from llmc.errors import CheckpointError
from llmc.quant.format import Choice

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which four bits of an int32 hold column 0, 1, …"""


def read(config: HfConfig, arch: ModelArch) -> Scheme | None:
    """Return the scheme: W4A16_GPTQ with zero points, W4A16_AWQ without."""
    num_reasons = len(config.reasons)
    config.expect("bits", 4)
    # GPTQModel writes the same tensors and calls the version `format`.
    version = config.maybe(str, "version") or config.optional(str, "format", "gemm")
    if version.lower() != "gemm":
        config.refuse("version", version, "'gemm'")
    size = config.maybe(int, "group_size")
    kept = grouped_size(config, size, arch)
    left_out = strings(config, "modules_to_not_convert")
    if kept is None or len(config.reasons) > num_reasons:
        return None
    has_zeros = config.optional(bool, "zero_point", True)
    run = size if size is not None and size > 0 else None

    def stored(num_out: int, num_in: int) -> dict[str, Stored]:
        groups = 1 if run is None else num_in // run
        return {
            "qweight": Stored(dtypes=("int32",), shapes=((num_in, num_out // 8),)),
            "qzeros": Stored(dtypes=("int32",), shapes=((groups, num_out // 8),)),
            "scales": Stored(dtypes=FLOATS, shapes=((groups, num_out),)),
        }

    def convert(sources: Sequence[Source], choice: Choice) -> Tensors:
        codes = np.concatenate([_columns(source.tensors["qweight"]).T for source in sources])
        scale = np.concatenate([source.scales("scales").T for source in sources])
        zeros = np.concatenate([_columns(source.tensors["qzeros"]).T for source in sources])
        if has_zeros:
            return fusing.int4_with_zeros(codes, scale, zeros, choice, sources[0].name)
        if (zeros != 8).any():
            raise CheckpointError(
                f"{sources[0].name}.qzeros: zero point {int(zeros[zeros != 8][0])}, expected 8 as"
                " zero_point is false"
            )
        return fusing.int4_symmetric(codes, scale, choice)

    return Scheme(
        algo="W4A16_GPTQ" if has_zeros else "W4A16_AWQ",
        stored=stored,
        convert=convert,
        # Parts of names, as AutoAWQ takes them; it quantizes nothing but decoder layers.
        is_plain=lambda module: module == "lm_head" or any(part in module for part in left_out),
        group_size=kept,
        tolerates_zero_bias=True,
    )


def _columns(packed: Array) -> Array:
    """Return codes [rows, 8 * packed columns] in the order of their columns."""
    codes = fusing.nibbles(packed, 1)
    return codes.reshape(len(codes), -1, 8)[:, :, _PLACES].reshape(len(codes), -1)
