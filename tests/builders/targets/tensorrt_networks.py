"""TensorRT networks of tiny llamas, written as the target does, and stepped by the interpreter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.builders.targets.tensorrt_interpreter.inputs import Mode
from llmc.builders.targets.tensorrt_network import LoweredNetwork
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.builders.targets.tensorrt_toolkit import Toolkit
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import write_checkpoint

trt: Any = pytest.importorskip("tensorrt_rtx_bindings", reason="needs llmc[rtx]")

MAX_SEQ_LEN = 48
TOOLKIT = Toolkit.start(trt)
TOKENS = np.random.default_rng(5).integers(0, 97, 24).tolist()
NUM_CONTEXT = 17


def lower_tiny(tiny: TinyLlama, config: Any, directory: Path) -> list[LoweredNetwork]:
    """Return every rank's network; they must be kept while their definitions are used."""
    checkpoint = write_checkpoint(tiny, config, directory / "checkpoint")
    return list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=MAX_SEQ_LEN))


def read_tokens(networks: list[LoweredNetwork], mode: Mode = "ideal") -> Any:
    """Return logits [len(TOKENS), vocabulary]: a context, then token by token."""
    stepped = SteppedNetwork(networks, mode=mode)
    return stepped.read(TOKENS, num_context=NUM_CONTEXT)
