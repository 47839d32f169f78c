"""A checkpoint's TensorRT network, all ranks of it, stepped by the interpreter.

The caches hold a number nothing computes with by right wherever nothing was written, so that a
network that looks there shows it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from llmc.builders.targets.tensorrt_interpreter.graph import HELD, Graph
from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.builders.targets.tensorrt_interpreter.reader import read_network
from llmc.builders.targets.tensorrt_interpreter.run import evaluate_ranks
from llmc.builders.targets.tensorrt_network import LoweredNetwork, lower_network
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.checkpoint import Checkpoint

POISON = 1000.0
"""Large enough to ruin any softmax, small enough for float16."""

Float32Array = npt.NDArray[np.float32]


def lower_ranks(
    toolkit: Toolkit, checkpoint: Checkpoint, *, max_seq_len: int, table_inputs: bool = False
) -> Iterator[LoweredNetwork]:
    """Yield each rank's network with its weights. Raises: as lower_network."""
    for rank in range(checkpoint.config.num_rank_files):
        yield lower_network(
            toolkit,
            checkpoint.config,
            rank,
            max_seq_len=max_seq_len,
            weights="embed",
            table_inputs=table_inputs,
            file=checkpoint.rank(rank),
        )


class SteppedNetwork:
    """The networks of all ranks with a KV cache of `num_slots` slots each."""

    def __init__(
        self, networks: Sequence[LoweredNetwork], *, mode: Mode, num_slots: int = 1
    ) -> None:
        """Read the networks; their values are copied. Raises: as read_network."""
        self._graphs: list[Graph] = [read_network(network.network) for network in networks]
        self._mode: Mode = mode
        self._num_slots = num_slots
        self._bound = [
            _weight_inputs(network)
            | {
                name: torch.full((num_slots, *graph.inputs[name].shape[1:]), POISON)
                for name in graph.cache_outputs.values()
            }
            for network, graph in zip(networks, self._graphs, strict=True)
        ]

    def step(
        self,
        token_ids: npt.ArrayLike,
        starts: npt.ArrayLike,
        prompt_lens: npt.ArrayLike | None = None,
    ) -> Float32Array:
        """Feed token_ids [slots, S] at positions from starts [slots] on.

        A prompt is no longer than what was fed, unless `prompt_lens` [slots] says so. Returns rank
        0's logits [slots, S, vocabulary as padded]. Raises: BuildError where the networks cannot be
        evaluated.
        """
        ids, first = np.asarray(token_ids), np.asarray(starts)
        assert ids.shape[0] == first.shape[0] == self._num_slots, (ids.shape, first.shape)
        length = ids.shape[1]
        columns = np.arange(length)
        arrays = {
            "token_ids": ids,
            "positions": first[:, None] + columns,
            "write_indices": first,
            "kv_lens": first + length,
            "logits_rows": np.broadcast_to(columns, ids.shape),
            "prompt_lens": first + length if prompt_lens is None else prompt_lens,
        }
        given = {name: torch.tensor(array, dtype=HELD["INT32"]) for name, array in arrays.items()}
        inputs = [
            {name: found for name, found in (given | bound).items() if name in graph.inputs}
            for graph, bound in zip(self._graphs, self._bound, strict=True)
        ]
        outputs = evaluate_ranks(self._graphs, inputs, self._mode)
        logits: Float32Array = outputs[0]["logits"].numpy()
        return logits

    def read(self, token_ids: Sequence[int], *, num_context: int) -> Float32Array:
        """Return logits [tokens, vocabulary] of one text: a context in one step, then one by one.

        All of it is prompt. For a network of one slot.
        """
        whole = [len(token_ids)]
        parts = [self.step([token_ids[:num_context]], [0], whole)[0]]
        for place in range(num_context, len(token_ids)):
            parts.append(self.step([token_ids[place : place + 1]], [place], whole)[0])
        return np.concatenate(parts)


def _weight_inputs(network: LoweredNetwork) -> dict[str, torch.Tensor]:
    """Return the weights that are inputs of the network, held as `graph.HELD` says."""
    return {
        binding.name: torch.tensor(network.weights[binding.name].make().astype(np.float32)).reshape(
            tuple(map(int, binding.shape))
        )
        for binding in network.bindings
        if binding.is_weight
    }
