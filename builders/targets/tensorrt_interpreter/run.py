"""Evaluates graphs: one network, or those of several ranks in lockstep.

A rank runs until a collective; when all are there, each gets its part and goes on.
"""

from collections.abc import Generator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from llmc.builders.targets.tensorrt_interpreter import KINDS
from llmc.builders.targets.tensorrt_interpreter.collectives import exchange
from llmc.builders.targets.tensorrt_interpreter.graph import (
    HELD,
    ROUNDED,
    Graph,
    Layer,
    TensorInfo,
)
from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.errors import BuildError

Values = dict[str, torch.Tensor]


def evaluate(graph: Graph, inputs: Mapping[str, torch.Tensor], mode: Mode) -> Values:
    """Return the outputs of one network of one rank (evaluate_ranks)."""
    (outputs,) = evaluate_ranks([graph], [inputs], mode)
    return outputs


@torch.inference_mode()
def evaluate_ranks(
    graphs: Sequence[Graph], inputs: Sequence[Mapping[str, torch.Tensor]], mode: Mode
) -> list[Values]:
    """Return each rank's outputs, by name, held as `graph.HELD` says.

    Inputs are of the type their tensor is held as. A KV cache among them is written where it lies:
    the output is that same tensor. Raises: BuildError where an input or a result does not have the
    shape the network states, or ranks do not meet; UnsupportedError.
    """
    runs = [_run(graph, given, mode) for graph, given in zip(graphs, inputs, strict=True)]
    results: list[Values] = [{} for _ in runs]
    received: list[torch.Tensor | None] = [None] * len(runs)
    while True:
        waiting: list[tuple[Layer, torch.Tensor] | None] = []
        for rank, run in enumerate(runs):
            try:
                waiting.append(run.send(received[rank]))
            except StopIteration as end:
                results[rank] = end.value
                waiting.append(None)
        if not any(waiting):
            return results
        received = list(exchange(waiting))


def _run(
    graph: Graph, inputs: Mapping[str, torch.Tensor], mode: Mode
) -> Generator[tuple[Layer, torch.Tensor], torch.Tensor | None, Values]:
    values = dict(graph.constants)
    for name, info in graph.inputs.items():
        if name not in inputs:
            raise BuildError(f"input {name}: missing")
        values[name] = inputs[name]
        _check(info, values[name], f"input {name}")
    last_reader = {name: layer for layer in graph.layers for name in layer.inputs}
    for layer in graph.layers:
        given = [None if name is None else values[name] for name in layer.inputs]
        if layer.kind == "DIST_COLLECTIVE":
            assert given[0] is not None
            found: Any = yield layer, given[0]
        else:
            found = _evaluator(layer.kind)(layer, given, mode)
        results = found if isinstance(found, tuple) else (found,)
        for info, result in zip(layer.outputs, results, strict=True):
            values[info.name] = _settle(layer, info, result, mode)
        for read in filter(None, set(layer.inputs).difference(graph.outputs)):
            if last_reader[read] is layer:
                del values[read]
    return {name: values[name] for name in graph.outputs}


def _evaluator(kind: str) -> Any:
    module = import_module(f"llmc.builders.targets.tensorrt_interpreter.{KINDS[kind]}")
    return getattr(module, kind.lower())


def _settle(layer: Layer, info: TensorInfo, value: torch.Tensor, mode: Mode) -> torch.Tensor:
    """Return a result as its type is held; "typed" rounds it to that type."""
    if value.is_floating_point() != HELD[info.dtype].is_floating_point and info.dtype != "INT8":
        raise BuildError(f"{layer.name}: {layer.kind} made {value.dtype}, expected {info.dtype}")
    value = value.to(HELD[info.dtype])
    if mode == "typed" and info.dtype in ROUNDED and layer.kind != "KV_CACHE_UPDATE":
        value = value.to(ROUNDED[info.dtype]).to(torch.float32)
    _check(info, value, f"{layer.name} ({layer.kind})")
    return value


def _check(info: TensorInfo, value: torch.Tensor, what: str) -> None:
    fits = value.dim() == len(info.shape) and all(
        stated in (-1, length) for stated, length in zip(info.shape, value.shape, strict=True)
    )
    if not fits:
        raise BuildError(f"{what}: shape {tuple(value.shape)}, the network states {info.shape}")
    if value.dtype != HELD[info.dtype]:
        raise BuildError(f"{what}: held as {value.dtype}, expected {HELD[info.dtype]}")
