"""Ours beside nvidia-modelopt: the same model, calibration ids and texts; KL, time, memory.

    python benchmarks/modelopt_comparison.py demo/smollm2 modelopt-venv [ALGO ...]

modelopt gets an environment of its own at the given path, made when it is not there. Its model is
fake-quantized in float32 and compared with the float32 model in torch; ours is the CPU engine,
compared with the float32 engine by the gate. Both run with their defaults, but for the group size.
Time is from opening the model to the quantized one: ours is the whole checkpoint on the disk,
digested, modelopt's in memory, and beside it what it takes with `export_hf_checkpoint`, which
writes its checkpoint. Imports before that are not counted, those on the way are. Peak memory is of
the whole process.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmc.builders import pipeline
from llmc.builders.hf.preflight import examine
from llmc.builders.quantize.texts import load_calibration
from llmc.gate.corpus import DEFAULT_TEXTS, encode, read_texts
from llmc.gate.measure import WINDOW_TOKENS
from llmc.gate.step import gate_build
from llmc.log import NullProgress
from llmc.recipes.loader import Override, load_recipe
from llmc.recipes.schema import Recipe
from llmc.runtime.tokenizer import Tokenizer

PINNED = ("torch==2.13.0", "nvidia-modelopt==0.47.0", "transformers==4.57.6")
"""modelopt loses rope_theta with transformers 5."""

ALGOS = ("FP8", "W8A8_SQ_PER_CHANNEL", "W4A16_AWQ")
GROUP_SIZE = 64
CALIBRATION_TOKENS = 512
WORKER = Path(__file__).parent / "modelopt_worker.py"


def make_environment(directory: Path) -> Path:
    """Install modelopt into `directory` unless it is there; return its Python."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PINNED], check=True)
    return python


def recipe_of(model: Path, algo: str, samples: int, text_tokens: int) -> Recipe:
    """Return our recipe, all defaults but the group size; plain tensors are bfloat16."""
    values: dict[tuple[str, ...], object] = {
        ("model",): str(model),
        ("dtype",): "bfloat16",
        ("quantization", "algo"): algo,
        ("quantization", "calibration", "samples"): samples,
        ("quantization", "calibration", "max_tokens"): CALIBRATION_TOKENS,
        ("gate", "max_tokens"): text_tokens,
        ("build", "max_seq_len"): WINDOW_TOKENS,
    }
    if algo == "W4A16_AWQ":
        values[("quantization", "group_size")] = GROUP_SIZE
    return load_recipe(
        None,
        [Override(path=path, value=value, source="benchmark") for path, value in values.items()],
    )


def write_ids(path: Path, model: Path, samples: int, text_tokens: int) -> None:
    """Write the ids that llmc would calibrate with, and the windows its gate would measure on."""
    opened, reasons = examine(model)
    assert opened is not None and not reasons, reasons
    vocab_size = opened.arch.vocab_size
    data = load_calibration(
        None, model, samples=samples, max_tokens=CALIBRATION_TOKENS, vocab_size=vocab_size
    )
    arrays = {f"calibration-{index}": ids for index, ids in enumerate(data.sequences)}
    tokenizer = Tokenizer.open(model)
    for text in read_texts(DEFAULT_TEXTS):
        ids = encode(text, tokenizer, vocab_size=vocab_size, max_tokens=text_tokens)
        for window in np.array_split(np.asarray(ids, np.int32), -(-len(ids) // WINDOW_TOKENS)):
            arrays[f"window-{len(arrays)}"] = window
    np.savez(path, **arrays)


def measure_ours(recipe: Recipe, output: Path) -> dict[str, float]:
    """Quantize in this process, then build and gate; return KL, seconds and peak bytes."""
    started = time.monotonic()
    pipeline.build(
        recipe,
        output,
        until="checkpoint",
        progress=NullProgress(),
        report=lambda result: None,
        workers=2,
    )
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pipeline.build(
        recipe, output, until="engine", progress=NullProgress(), report=lambda result: None
    )
    gate = gate_build(
        recipe, output, cache=output.parent / "cache", workers=2, progress=NullProgress()
    ).gate
    texts = gate.measurement.texts
    total = sum(text.num_tokens * text.divergence.mean_kl for text in texts if text.divergence)
    kl = total / sum(text.num_tokens for text in texts)
    return {"kl": kl, "seconds": seconds, "peak_bytes": peak}


def ask(command: Sequence[str | Path]) -> dict[str, Any]:
    """Run a process that prints JSON last; return it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, help="Hugging Face directory of a llama")
    parser.add_argument("environment", type=Path, help="modelopt's virtual environment")
    parser.add_argument("algos", nargs="*", metavar="ALGO", help=f"of {', '.join(ALGOS)}")
    parser.add_argument("--samples", type=int, default=8, help="calibration sequences")
    parser.add_argument("--text-tokens", type=int, default=4096, help="tokens of each text")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    algos = arguments.algos or ALGOS
    effort = (arguments.samples, arguments.text_tokens)
    if arguments.ours:
        recipe = recipe_of(arguments.model, algos[0], *effort)
        print(json.dumps(measure_ours(recipe, arguments.ours)))
        return
    python = make_environment(arguments.environment)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_ids(folder / "ids.npz", arguments.model, *effort)
        heads = ["algorithm", "KL", "modelopt's", "ratio", "seconds, ratio", "with its export"]
        print("| " + " | ".join([*heads, "peak memory, ratio"]) + " |\n" + "|---" * 7 + "|")
        options = ["--samples", str(effort[0]), "--text-tokens", str(effort[1])]
        for algo in algos:
            (folder / algo).mkdir()
            model = [arguments.model, arguments.environment, algo]
            ours = ask([sys.executable, __file__, *model, *options, "--ours", folder / algo])
            command = [python, WORKER, arguments.model, algo, folder / "ids.npz"]
            command += ["--export", folder / f"{algo}-exported"]
            theirs = ask([*command, "--group-size", str(GROUP_SIZE)])
            written = theirs["seconds"] + theirs["export_seconds"]
            ratios = {key: ours[key] / theirs[key] for key in ours}
            print(
                f"| {algo} | {ours['kl']:.5f} | {theirs['kl']:.5f} | {ratios['kl']:.3f}"
                f" | {ours['seconds']:.1f} / {theirs['seconds']:.1f} = {ratios['seconds']:.2f}"
                f" | {ours['seconds']:.1f} / {written:.1f} = {ours['seconds'] / written:.2f}"
                f" | {ours['peak_bytes'] / 2**30:.2f} / {theirs['peak_bytes'] / 2**30:.2f} GiB"
                f" = {ratios['peak_bytes']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
