"""The network TensorRT is given, evaluated on this machine beside an engine that runs.

What is compared is the lowering: the same checkpoint, the same tokens, once through the layers of
the finished INetworkDefinition and once through a CPU engine. No plan is built and no GPU needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmc.builders.targets import BuildLimits, cpu
from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.builders.targets.tensorrt_rtx_module import import_tensorrt_rtx
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from llmc.checkpoint import Checkpoint, CheckpointConfig
from llmc.gate.metrics import Float32Array
from llmc.gate.reference import open_engine
from llmc.log import Progress
from llmc.runtime.batch import Batch
from llmc.runtime.engine import Engine

MAX_TOKENS = 64
NUM_GENERATED = 16
"""Tokens fed one by one through the cache, after a context."""

_WEIGHTS_ONLY = {"W8A16", "W4A16", "W4A16_AWQ", "W4A16_GPTQ"}
_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest and mean difference of logits allowed, in standard deviations of the reference."""

    max_difference: float
    mean_difference: float


EXACT = Tolerance(max_difference=1e-3, mean_difference=1e-4)
"""Both sides compute in float32 with the same numbers; sums are taken in another order.
SmolLM2-135M differs by 3e-5 at most; faults, as tests/builders/targets/test_tensorrt_faults.py
plants them, by more than 0.1."""
WEIGHTS = Tolerance(max_difference=0.02, mean_difference=3e-3)
"""Quantized weights: the CPU engine rounds inputs to 16 bits for some (docs/targets/cpu.md), and
TensorRT wants scales of groups in float16, 2^-11 of each. Tiny models differ by 4e-3 at most."""
ROUNDED = Tolerance(max_difference=2.0, mean_difference=0.15)
"""Activations are rounded to 8 or 4 bits: one that lies between two steps goes up on one side and
down on the other when sums differ in the last bit, and layers after it multiply that. SmolLM2-135M
in FP8: the CPU engine is 0.07 on average and 1.1 at most from this network, and 0.07 from the torch
references of its own ops; a scale doubled makes it 0.4 and 3.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How far the network's logits are from the reference's; `spread` is the latter's deviation."""

    num_tokens: int
    num_layers: int
    max_difference: float
    mean_difference: float
    spread: float
    tolerance: Tolerance | None

    @property
    def passed(self) -> bool:
        """Whether the differences are within the tolerance; without one there is no verdict."""
        tolerance = self.tolerance
        if tolerance is None:
            return True
        # Written so that NaN fails.
        return (
            self.max_difference <= tolerance.max_difference * self.spread
            and self.mean_difference <= tolerance.mean_difference * self.spread
        )


def tolerance_of(config: CheckpointConfig) -> Tolerance:
    """Return what a checkpoint's network may differ by, from what it rounds while it runs."""
    quantization = config.quantization
    layers = quantization.quantized_layers.values()
    algos = {layer.quant_algo for layer in layers} or {quantization.quant_algo}
    if quantization.kv_cache_quant_algo or algos - {None, *_WEIGHTS_ONLY}:
        return ROUNDED
    return WEIGHTS if algos - {None} else EXACT


def open_cpu_reference(checkpoint: Checkpoint, directory: Path, progress: Progress) -> Engine:
    """Build a CPU engine of the checkpoint in the empty `directory` and load it.

    Raises: UnsupportedError when the CPU target cannot, or it does not fit into memory.
    """
    config = checkpoint.config
    limits = BuildLimits(
        max_batch_size=1,
        max_num_tokens=MAX_TOKENS,
        max_input_len=MAX_TOKENS,
        max_seq_len=min(MAX_TOKENS, config.arch.max_position_embeddings),
        tokens_per_block=_BLOCK,
        # The model's own type would round keys and values, which the "ideal" network does not.
        kv_cache_dtype=None if config.quantization.kv_cache_quant_algo else "float32",
    )
    cpu.build(checkpoint, directory, limits=limits, progress=progress)
    return open_engine(directory)


class EvaluatedNetwork:
    """A checkpoint's network, lowered and read back once for any number of texts."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_seq_len: int,
        table_inputs: bool = False,
        mode: Mode = "ideal",
    ) -> None:
        """Lower all ranks; `max_seq_len` is the engine's, which tables and caches follow.

        `table_inputs`: the tables of the vocabulary are inputs, as of plans without weights.

        Peak memory is three times the weights in float32.
        Raises: UnsupportedError for what the target or the interpreter does not have; BuildError;
        ToolchainError without TensorRT.
        """
        toolkit = Toolkit.start(import_tensorrt_rtx())
        networks = list(
            lower_ranks(toolkit, checkpoint, max_seq_len=max_seq_len, table_inputs=table_inputs)
        )
        self._stepped = SteppedNetwork(networks, mode=mode)
        self._vocab_size = checkpoint.config.arch.vocab_size
        self.num_layers = sum(network.network.num_layers for network in networks)
        # What types round depends on the model, and says nothing of the lowering.
        self._tolerance = tolerance_of(checkpoint.config) if mode == "ideal" else None

    def compare(self, tokens: Sequence[int], reference: Engine) -> Comparison:
        """Feed tokens to the network and to the reference, and compare all logits.

        The first go in as one context, the last NUM_GENERATED one by one.
        """
        num_context = max(1, len(tokens) - NUM_GENERATED)
        logits = self._stepped.read(tokens, num_context=num_context)[:, : self._vocab_size]
        wanted = _reference_logits(reference, tokens)
        difference = np.abs(logits - wanted)
        return Comparison(
            num_tokens=len(tokens),
            num_layers=self.num_layers,
            max_difference=float(difference.max()),
            mean_difference=float(difference.mean()),
            spread=float(wanted.std()),
            tolerance=self._tolerance,
        )


def _reference_logits(engine: Engine, tokens: Sequence[int]) -> Float32Array:
    """Return the engine's logits [tokens, vocab], computed in one step."""
    count, limits = len(tokens), engine.limits
    rows = np.arange(count, dtype=np.int32)
    blocks = np.arange(limits.max_blocks_per_sequence, dtype=np.int32)[None]
    batch = Batch(
        token_ids=np.array(tokens, np.int32),
        positions=rows,
        query_start=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_tables=np.minimum(blocks, limits.num_blocks - 1),
        logits_rows=rows,
        prompt_lens=np.array([count], np.int32),
    )
    return engine.forward(batch).copy()
