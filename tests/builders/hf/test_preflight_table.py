"""Every way a model's files are known to disagree: right like transformers, or one clear error.

A refusal names the file and the tensor, setting or token, and leaves nothing behind.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from llmc.builders import pipeline
from llmc.log import NullProgress
from llmc.recipes.schema import Recipe
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.engines import cpu
from tests.builders.hf.cases import CASES, Case
from tests.cli.run import llmc
from tests.runtime.cpu_engines import ragged
from tests.runtime.lockstep import ThreadRanks

PROMPT = np.random.default_rng(5).integers(0, 101, 90).tolist()


def cases(*, right: bool) -> list[Any]:
    return [pytest.param(case, id=case.name) for case in CASES if right is not bool(case.refusals)]


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", cases(right=False))
def test_refused(
    case: Case,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLMC_LOG", "warning")
    model = case.write(tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))
    arguments = ("build", model, "-o", tmp_path / "out", "--dtype", case.dtype, "--tp", case.tp)
    done = llmc(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code in (3, 4) and done.stdout == ""
    assert done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr
    assert str(model) in done.stderr
    for refusal in case.refusals:
        assert refusal in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", cases(right=True))
def test_right(case: Case, tmp_path: Path) -> None:
    """In float32 only the order of sums differs; the logits' spread is about 0.1."""
    model = case.write(tmp_path / "model")
    recipe = Recipe.model_validate(
        {
            "model": str(model),
            "dtype": case.dtype,
            "mapping": {"tp": case.tp},
            "build": {"max_batch_size": 1, "max_num_tokens": 128},
        }
    )
    out = tmp_path / "out"
    pipeline.build(recipe, out, until="engine", progress=NullProgress(), report=lambda _: None)
    found = last_logits(out / "engine", case.tp)
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor([PROMPT])).logits[0, -1].numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.ptp(expected))


def last_logits(engine_dir: Path, tp: int) -> Any:
    """Return the logits after the prompt; ranks are threads."""
    ranks = ThreadRanks(tp)
    kv = KvCacheConfig(max_tokens=256)
    engines = [
        cpu.load(engine_dir, rank=rank, kv=kv, threads=1, comm=ranks.at(rank)) for rank in range(tp)
    ]
    ((batch, _),) = ragged([PROMPT], [(len(PROMPT),)])

    def forward(engine: Any) -> Any:
        return engine.forward(batch).copy()

    with ThreadPoolExecutor(tp) as pool:
        logits = list(pool.map(forward, engines))[0]
    for engine in engines:
        engine.close()
    return logits[-1]
