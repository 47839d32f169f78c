"""Compare the requests a model is warmed up with, with its inputs and the files they are read from.

Source: triton-inference-server/core src/backend_model_instance.cc, GenerateWarmupData.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES = {
    **{f"TYPE_{kind}8": 1 for kind in ("INT", "UINT")},
    **{f"TYPE_{kind}16": 2 for kind in ("INT", "UINT", "FP", "BF")},
    **{f"TYPE_{kind}32": 4 for kind in ("INT", "UINT", "FP")},
    **{f"TYPE_{kind}64": 8 for kind in ("INT", "UINT", "FP")},
    "TYPE_BOOL": 1,
}
"""Bytes of a value, of the types that have a fixed number of them."""


def check_warmup(config: Any, directory: Path) -> Iterator[str]:
    """Yield what Triton would refuse when it loads the model in `directory`."""
    inputs = {tensor.name: tensor for tensor in config.input}
    for warmup in config.model_warmup:
        where = f"model_warmup[{warmup.name}]"
        for name, given in warmup.inputs.items():
            if name not in inputs:
                yield f"{where}: {name!r} is no input"
            elif given.data_type != inputs[name].data_type:
                yield f"{where}: {name!r} differs in type from the input"
            if any(dim < 0 for dim in given.dims):
                yield f"{where}: {name!r} has dims {list(given.dims)}, expected fixed ones"
            elif given.input_data_file:
                yield from _check_file(f"{where}: {name!r}", given, directory / "warmup")
        for name, tensor in inputs.items():
            if not tensor.optional and name not in warmup.inputs:
                yield f"{where}: required input {name!r} is missing"


def _check_file(where: str, given: Any, directory: Path) -> Iterator[str]:
    field = given.DESCRIPTOR.fields_by_name["data_type"]
    size = SIZES.get(field.enum_type.values_by_number[given.data_type].name)
    file = directory / given.input_data_file
    if not file.is_file():
        yield f"{where}: warmup/{given.input_data_file} is missing"
    elif size is not None and file.stat().st_size < size * math.prod(given.dims):
        expected = size * math.prod(given.dims)
        yield (
            f"{where}: warmup/{given.input_data_file} has {file.stat().st_size} bytes,"
            f" expected {expected}"
        )
