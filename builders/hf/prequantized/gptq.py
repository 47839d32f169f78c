"""GPTQ as AutoGPTQ and GPTQModel write it.

Eight codes of 4 bits to an int32, the lowest bits first: qweight [in/8, out] along in, qzeros
[groups, out/8] along out; scales [groups, out]; g_idx [in] is each column's group. Version 1 of the
format stores zero points minus one, gptq_v2 as they are.

Source: AutoGPTQ 0.7 auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (pack); GPTQModel 7.7
gptqmodel/utils/model.py (convert_gptq_v1_to_v2_format_module), gptqmodel/quantization/config.py.
"""

import re
from collections.abc import Callable, Sequence

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
    order_reason,
)
from llmc.errors import CheckpointError
from llmc.quant.format import Choice

_FORMATS = ("gptq", "gptq_v2")


def read(config: HfConfig, arch: ModelArch) -> Scheme | None:
    """Return the scheme: W4A16_AWQ when all zero points are 8, else W4A16_GPTQ."""
    num_reasons = len(config.reasons)
    config.expect("bits", 4)
    # GPTQModel 7 calls it `format`; files may have either word.
    form = config.maybe(str, "checkpoint_format") or config.optional(str, "format", "gptq")
    if form not in _FORMATS:
        config.refuse("checkpoint_format", form, f"one of {', '.join(_FORMATS)}")
    config.expect("is_marlin_format", False)
    config.expect("pack_dtype", "int32")
    size = config.maybe(int, "group_size")
    kept = grouped_size(config, size, arch)
    is_plain = _plain_modules(config)
    if kept is None or len(config.reasons) > num_reasons:
        return None
    symmetric, stored_less = config.optional(bool, "sym", True), form == "gptq"
    run = size if size is not None and size > 0 else None

    def stored(num_out: int, num_in: int) -> dict[str, Stored]:
        groups = 1 if run is None else num_in // run
        return {
            "qweight": Stored(dtypes=("int32",), shapes=((num_in // 8, num_out),)),
            "qzeros": Stored(dtypes=("int32",), shapes=((groups, num_out // 8),)),
            "scales": Stored(dtypes=FLOATS, shapes=((groups, num_out),)),
            "g_idx": Stored(dtypes=("int32", "int64"), shapes=((num_in,),), optional=True),
        }

    def convert(sources: Sequence[Source], choice: Choice) -> Tensors:
        codes = np.concatenate(
            [fusing.nibbles(source.tensors["qweight"], 0).T for source in sources]
        )
        scale = np.concatenate([source.scales("scales").T for source in sources])
        zeros = np.concatenate([_zero_points(source, stored_less).T for source in sources])
        if not symmetric:
            return fusing.int4_with_zeros(codes, scale, zeros, choice, sources[0].name)
        if (zeros != 8).any():
            raise CheckpointError(
                f"{sources[0].name}.qzeros: zero point {int(zeros[zeros != 8][0])}, expected 8 as"
                f" sym is set and checkpoint_format is {form}"
            )
        return fusing.int4_symmetric(codes, scale, choice)

    return Scheme(
        algo="W4A16_AWQ" if symmetric else "W4A16_GPTQ",
        stored=stored,
        convert=convert,
        is_plain=is_plain,
        group_size=kept,
        tolerates_zero_bias=True,
        looked_at=("g_idx",),
        look=lambda source: order_reason(source, "g_idx", run or len(source.tensors["g_idx"])),
    )


def _zero_points(source: Source, stored_less: bool) -> Array:
    """Return zero points [groups, out]. Raises: CheckpointError for one that is ambiguous."""
    codes = fusing.nibbles(source.tensors["qzeros"], 1)
    if not stored_less:
        return codes
    if (codes == 15).any():
        # 16 to some kernels, 0 to others.
        raise CheckpointError(
            f"{source.name}.qzeros: 15, which version 1 has no meaning for, expected 0 to 14",
            hint="save the model again in checkpoint_format gptq_v2",
        )
    return codes + np.uint8(1)


def _plain_modules(config: HfConfig) -> Callable[[str], bool]:
    """Return which modules are not quantized: lm_head, and what settings leave out."""
    has_head = config.optional(bool, "lm_head", False)
    blocks = config.raw("modules_in_block_to_quantize")
    if blocks is not None and not isinstance(blocks, list):
        config.refuse("modules_in_block_to_quantize", blocks, "a list of names")
        blocks = None
    inside = [
        name for names in blocks or () for name in ([names] if isinstance(names, str) else names)
    ]
    left_out = []
    for pattern in config.raw("dynamic") or {}:
        if not str(pattern).startswith("-:"):
            config.refuse("dynamic", pattern, "'-:' and the modules to leave out")
            continue
        try:
            left_out.append(re.compile(str(pattern).removeprefix("-:")))
        except re.error as error:
            config.refuse("dynamic", pattern, f"a regular expression ({error})")

    def is_plain(module: str) -> bool:
        if module == "lm_head":
            return not has_head
        listed = not inside or any(module.endswith(f".{name}") for name in inside)
        return not listed or any(pattern.match(module) for pattern in left_out)

    return is_plain
