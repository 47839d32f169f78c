"""The CPU engine of every family against transformers, in float32, alone and over two ranks."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llmc.builders.convert import convert
from llmc.builders.families.family import load_family
from llmc.builders.quantize.calibration import Calibration
from llmc.builders.targets import BuildLimits, cpu
from llmc.checkpoint import Checkpoint, Quantization
from llmc.errors import UnsupportedError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.engines import cpu as engines
from llmc.runtime.engines.cpu import CpuEngine
from tests.builders.families.tiny_families import CASES, LENGTH, prompt, write_case
from tests.runtime.cpu_engines import TOKENS_PER_BLOCK, ragged
from tests.runtime.lockstep import ThreadRanks

LIMITS = BuildLimits(
    max_batch_size=2,
    max_num_tokens=64,
    max_input_len=64,
    max_seq_len=64,
    tokens_per_block=TOKENS_PER_BLOCK,
)
# A prompt in two chunks with another sequence beside it, then single tokens.
CHUNKS = ((25, 3), (LENGTH - 28, 5), (1, 0), (1, 1), (1, 1))


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[int]], list[npt.NDArray[np.float32]]]:
    """A model's directory, two sequences, and transformers' logits of each."""
    directory, model = write_case(tmp_path_factory.mktemp(request.param), request.param)
    whole = prompt(model.config.vocab_size)
    sequences = [whole, whole[10:20]]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0].numpy() for ids in sequences]
    return directory, sequences, logits


def engine_logits(
    model_dir: Path,
    directory: Path,
    sequences: list[list[int]],
    mapping: Mapping = Mapping(),  # noqa: B008
    **choices: Any,
) -> list[npt.NDArray[np.float32]]:
    """Convert, build and step all ranks; return rank 0's logits."""
    checkpoint_dir, engine_dir = directory / "checkpoint", directory / "engine"
    checkpoint_dir.mkdir()
    engine_dir.mkdir()
    convert(
        model_dir,
        checkpoint_dir,
        dtype="float32",
        mapping=mapping,
        progress=NullProgress(),
        workers=2,
        **{"quantization": Quantization(), **choices},
    )
    checkpoint = Checkpoint.open(checkpoint_dir)
    cpu.build(checkpoint, engine_dir, limits=LIMITS, progress=NullProgress())
    link = ThreadRanks(mapping.world_size)
    ranks = [
        engines.load(
            engine_dir,
            rank=rank,
            kv=KvCacheConfig(max_tokens=8 * TOKENS_PER_BLOCK),
            threads=1,
            comm=link.at(rank) if mapping.world_size > 1 else None,
        )
        for rank in range(mapping.world_size)
    ]
    vocab_size = ranks[0].limits.vocab_size
    logits = [np.full((len(ids), vocab_size), np.nan, np.float32) for ids in sequences]
    with ThreadPoolExecutor(len(ranks)) as pool:
        for batch, rows in ragged(sequences, CHUNKS):
            forward = partial(CpuEngine.forward, batch=batch)
            found = [*pool.map(forward, ranks)][0]
            for row, (sequence, position) in enumerate(rows):
                logits[sequence][position] = found[row]
    for engine in ranks:
        engine.close()
    return logits


EXPERT_MAPPINGS = {
    "ep2": Mapping(tp_size=2, moe_ep_size=2),
    "tp2ep2": Mapping(tp_size=4, moe_tp_size=2, moe_ep_size=2),
}


@pytest.mark.parametrize("case", ["mixtral", "gpt_oss"], indirect=True)
@pytest.mark.parametrize("mapping", EXPERT_MAPPINGS.values(), ids=EXPERT_MAPPINGS)
def test_logits_of_shared_out_experts(case: Any, mapping: Mapping, tmp_path: Path) -> None:
    test_logits_equal_transformers(case, mapping, tmp_path)


@pytest.mark.parametrize(
    "mapping", [Mapping(), Mapping(tp_size=2), Mapping(pp_size=2)], ids=["one", "tp2", "pp2"]
)
def test_logits_equal_transformers(case: Any, mapping: Mapping, tmp_path: Path) -> None:
    model_dir, sequences, wanted = case
    found = engine_logits(model_dir, tmp_path, sequences, mapping)
    spread = wanted[0].std()
    assert spread > 0.1
    for logits, want in zip(found, wanted, strict=True):
        assert np.abs(logits - want).max() < 1e-4 * spread


# kv_cache_quant_algo, and the least correlation of logits: of a few layers of random weights one
# scale for all of an FP8 input leaves 0.83 and more (which changes with the instruction set), one
# for each token of an INT8 input 0.995.
SMOOTHED = "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
ALGOS = {"FP8": ("FP8", 0.75), SMOOTHED: ("INT8", 0.99)}


@pytest.mark.parametrize("algo", ALGOS)
def test_what_is_calibrated_is_close(case: Any, algo: str, tmp_path: Path) -> None:
    """Every layout of norms and blocks can be calibrated, inputs, weights and KV cache.

    Where TensorRT-LLM smooths into the norms, that too, their biases included; else it is refused.
    """
    model_dir, sequences, wanted = case
    kv_algo, least = ALGOS[algo]
    text = tmp_path / "text.txt"
    ids = np.random.default_rng(1).integers(3, wanted[0].shape[1], 256)
    text.write_text(" ".join(f"w{index}" for index in ids))
    choices: dict[str, Any] = {
        "quantization": Quantization.of(algo, kv_algo),
        "calibration": Calibration(state_parent=tmp_path, key="k", data=text, max_tokens=64),
    }
    architecture = json.loads((model_dir / "config.json").read_text())["architectures"][0]
    if algo == SMOOTHED and not load_family(architecture).smoothquant:
        with pytest.raises(UnsupportedError, match="no SmoothQuant converter"):
            engine_logits(model_dir, tmp_path, sequences, **choices)
        return
    found = engine_logits(model_dir, tmp_path, sequences, **choices)
    for logits, want in zip(found, wanted, strict=True):
        assert np.corrcoef(logits.ravel(), want.ravel())[0, 1] > least
        assert np.abs(logits - want).max() > 1e-3 * want.std(), "nothing was rounded"
