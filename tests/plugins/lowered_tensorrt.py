"""One op as a TensorRT network of its own, evaluated by the interpreter."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD
from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.builders.targets.tensorrt_interpreter.run import evaluate
from llmc.builders.targets.tensorrt_network import NetworkLowering
from llmc.builders.targets.tensorrt_stepping import POISON
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.dtypes import dtype_name
from llmc.plugins import graph
from llmc.plugins.graph import OpCall
from llmc.plugins.tensorrt_layers import Layers
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile, SafetensorsWriter
from tests.plugins.tiny_llama import TinyLlama

trt: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="needs llmc[rtx]")

Float32Array = npt.NDArray[np.float32]


class LoweredOp:
    """The op's network in `dtype`, with a KV cache of `num_slots` slots if it has one."""

    def __init__(
        self,
        call: OpCall,
        columns: Mapping[str, int],
        *,
        directory: Path,
        tensors: Mapping[str, npt.NDArray[Any]] | None = None,
        dtype: str = "float32",
        max_seq_len: int = 64,
        num_slots: int = 1,
    ) -> None:
        """`columns` are those of each input, `tensors` the weights by checkpoint name."""
        toolkit = Toolkit.start(trt)
        definition = toolkit.builder.create_network(0)
        tiny = TinyLlama.make()
        lowering = NetworkLowering(
            layers=Layers(trt, definition, toolkit.last_error),
            config=replace(tiny.config(), dtype=dtype),
            max_seq_len=max_seq_len,
            embeds=True,
            table_inputs=False,
            file=_write(directory / "op.safetensors", tensors or {}),
        )
        lowering.declare_inputs()
        for name in call.inputs:
            dims = (-1, -1, columns[name])
            lowering.set_value(
                name, definition.add_input(name, lowering.layers.data_type(dtype), dims)
            )
        graph.part(call.plugin, "tensorrt").lower(call, lowering)
        (output,) = call.outputs
        lowering.value(output).name = output
        definition.mark_output(lowering.value(output))
        self.graph, self._output = read_network(definition), output
        self._caches = {
            name: torch.full((num_slots, *self.graph.inputs[name].shape[1:]), POISON)
            for name in self.graph.cache_outputs.values()
        }

    def __call__(
        self,
        inputs: Mapping[str, Float32Array],
        starts: npt.ArrayLike = 0,
        prompt_lens: npt.ArrayLike = 0,
        mode: Mode = "ideal",
    ) -> Float32Array:
        """Evaluate inputs [slots, S, columns], whose first tokens are at `starts` [slots]."""
        slots, length, _ = next(iter(inputs.values())).shape
        first = np.broadcast_to(np.asarray(starts), (slots,))
        places = first[:, None] + np.arange(length)
        batch = {
            "token_ids": np.zeros_like(places),
            "positions": places,
            "write_indices": first,
            "kv_lens": first + length,
            "logits_rows": np.zeros((slots, 1)),
            "prompt_lens": np.broadcast_to(np.asarray(prompt_lens), (slots,)),
        }
        given = {name: torch.tensor(array, dtype=HELD["INT32"]) for name, array in batch.items()}
        given |= {name: torch.from_numpy(array) for name, array in inputs.items()} | self._caches
        given = {name: tensor for name, tensor in given.items() if name in self.graph.inputs}
        found = evaluate(self.graph, given, mode)[self._output]
        result: Float32Array = found.numpy()
        return result


def _write(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> SafetensorsFile:
    infos = [
        TensorInfo(name=name, dtype=dtype_name(array.dtype), shape=array.shape)
        for name, array in tensors.items()
    ]
    with SafetensorsWriter(path, infos) as writer:
        for name, array in tensors.items():
            writer.write(name, array)
    return SafetensorsFile.open(path)
