"""Every family of the table builds for the target tensorrt-rtx, unquantized."""

import pytest

from llmc.builders.families import FAMILIES
from llmc.builders.families.family import load_family
from llmc.builders.families.support import LIMITS, example
from llmc.builders.targets import tensorrt_rtx
from llmc.builders.targets.tensorrt_network import lower_network
from llmc.checkpoint import CheckpointConfig
from llmc.recipes.schema import TensorRtxTarget
from tests.builders.targets.tensorrt_networks import TOOLKIT

TARGET = TensorRtxTarget(kind="tensorrt-rtx", compute_capabilities=(75, 80, 89, 120))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_family_builds(architecture: str) -> None:
    """No reason against it in float16, for any compute capability, and TensorRT takes each layer;
    test_tensorrt_families says that the network computes the model."""
    arch = load_family(architecture).arch(example(architecture))
    config = CheckpointConfig(arch=arch, dtype="float16")
    assert tensorrt_rtx.unsupported(config, LIMITS, TARGET) == []
    lowered = lower_network(TOOLKIT, config, 0, max_seq_len=LIMITS.max_seq_len, weights="refit")
    assert lowered.num_attentions == arch.num_hidden_layers
