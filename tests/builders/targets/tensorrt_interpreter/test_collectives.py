"""Ranks in lockstep: each runs its own network, and meets the others at collectives."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.targets.tensorrt_interpreter.graph import Graph
from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.builders.targets.tensorrt_interpreter.run import evaluate_ranks
from llmc.errors import BuildError, UnsupportedError
from tests.builders.targets.tensorrt_interpreter.small_networks import SmallNetwork, trt

REDUCTION = {"ALL_REDUCE": "SUM", "ALL_GATHER": "NONE"}


def collective(
    operation: str, *, group: tuple[int, ...] = (0, 1), metadata: str | None = None
) -> Any:
    network = SmallNetwork()
    x = network.input("x", "FLOAT", 2, 3)
    layer = network.definition.add_dist_collective(
        x,
        getattr(trt.CollectiveOperation, operation),
        getattr(trt.ReduceOperation, REDUCTION[operation]),
        -1,
        np.array(group, np.int64),
    )
    layer.num_ranks = 2
    layer.name = "o_proj.allreduce"
    layer.metadata = metadata or json.dumps({"collective": operation, "group": list(group)})
    network.output(layer.get_output(0), "result")
    return network


def graph(operation: str, **options: Any) -> Graph:
    return read_network(collective(operation, **options).definition)


PARTS = [torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)]


def test_all_reduce_sums() -> None:
    graphs = [graph("ALL_REDUCE"), graph("ALL_REDUCE")]
    outputs = evaluate_ranks(graphs, [{"x": part} for part in PARTS], "ideal")
    for found in outputs:
        assert torch.equal(found["result"], PARTS[0] + PARTS[1])


def test_all_gather_stacks_along_the_first_axis() -> None:
    graphs = [graph("ALL_GATHER"), graph("ALL_GATHER")]
    outputs = evaluate_ranks(graphs, [{"x": part} for part in PARTS], "ideal")
    for found in outputs:
        assert torch.equal(found["result"], torch.cat(PARTS))


def test_ranks_that_do_not_meet_are_an_error() -> None:
    graphs = [graph("ALL_REDUCE"), graph("ALL_GATHER")]
    with pytest.raises(BuildError, match="ranks do not meet"):
        evaluate_ranks(graphs, [{"x": part} for part in PARTS], "ideal")


def test_a_rank_alone_waits_for_nobody() -> None:
    with pytest.raises(BuildError, match=r"group \(0, 1\), rank 0 of 1"):
        evaluate_ranks([graph("ALL_REDUCE")], [{"x": PARTS[0]}], "ideal")


def test_metadata_that_says_nothing_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="o_proj.allreduce: metadata 'sum'"):
        graph("ALL_REDUCE", metadata="sum")


def test_metadata_that_lies_does_not_fit_the_shape() -> None:
    lie = json.dumps({"collective": "ALL_GATHER", "group": [0, 1]})
    graphs = [graph("ALL_REDUCE", metadata=lie), graph("ALL_REDUCE", metadata=lie)]
    with pytest.raises(BuildError, match=r"shape \(4, 3\), the network states \(2, 3\)"):
        evaluate_ranks(graphs, [{"x": part} for part in PARTS], "ideal")
