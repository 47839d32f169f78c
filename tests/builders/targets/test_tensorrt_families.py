"""The TensorRT network of every family, against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmc.builders.convert import convert
from llmc.builders.targets.tensorrt_stepping import SteppedNetwork, lower_ranks
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.builders.families.tiny_families import CASES, LENGTH, prompt, write_case
from tests.builders.targets.tensorrt_networks import MAX_SEQ_LEN, TOOLKIT


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's directory, its tokens, and transformers' logits."""
    directory, model = write_case(tmp_path_factory.mktemp(request.param), request.param)
    tokens = prompt(model.config.vocab_size)
    with torch.no_grad():
        return directory, tokens, model(torch.tensor([tokens])).logits[0].numpy()


def check_network(case: Any, mapping: Mapping, directory: Path) -> None:
    """Expect transformers' logits: float32, a context and then token by token, so that only the
    order of sums differs."""
    model, tokens, wanted = case
    convert(
        model,
        directory,
        dtype="float32",
        mapping=mapping,
        quantization=Quantization(),
        progress=NullProgress(),
        workers=1,
    )
    checkpoint = Checkpoint.open(directory)
    networks = list(lower_ranks(TOOLKIT, checkpoint, max_seq_len=MAX_SEQ_LEN))
    stepped = SteppedNetwork(networks, mode="ideal")
    logits = stepped.read(tokens, num_context=LENGTH - 8)[:, : wanted.shape[1]]
    assert np.abs(logits - wanted).max() < 1e-4 * wanted.std()


@pytest.mark.parametrize("tp", [1, 2])
def test_network_equals_transformers(case: Any, tp: int, tmp_path: Path) -> None:
    check_network(case, Mapping(tp_size=tp), tmp_path)


WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")


@pytest.mark.parametrize("case", WITH_EXPERTS, indirect=True)
def test_ranks_of_whole_experts_equal_transformers(case: Any, tmp_path: Path) -> None:
    """tp slices experts; here each rank has half of them."""
    check_network(case, Mapping(tp_size=2, moe_ep_size=2), tmp_path)
