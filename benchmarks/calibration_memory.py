"""Peak memory of calibration, measured beside its formula; and the formula for a 70B model.

    python benchmarks/calibration_memory.py [--layers N] [ALGO ...]

The model is synthetic: a billion parameters of zeros, which take no room on the disk. Every
algorithm runs in a process of its own; what Python and torch take before any work is left out.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from llmc.arch import ModelArch
from llmc.builders.families.llama import FAMILY
from llmc.builders.hf.preflight import examine
from llmc.builders.quantize.memory import Peak, peak_bytes
from llmc.builders.quantize.site import Settings, load_algorithm
from llmc.builders.quantize.source import TensorSource
from llmc.builders.quantize.state import State
from llmc.builders.quantize.texts import CalibrationData
from llmc.builders.quantize.walk import Walk
from llmc.checkpoint import CheckpointConfig, Quantization, tensor_specs
from llmc.log import NullProgress
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsWriter

ALGOS = ("FP8", "W8A8_SQ_PER_CHANNEL", "NVFP4", "W4A16_AWQ", "W4A16_GPTQ")
TOKENS, LENGTH = 4096, 512
GIB = 2**30

ONE_B = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=2048,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_size=64,
    intermediate_size=8192,
    vocab_size=32000,
    max_position_embeddings=4096,
    rotary_embedding_dim=64,
)
SEVENTY_B = replace(
    ONE_B,
    hidden_size=8192,
    num_hidden_layers=80,
    num_attention_heads=64,
    head_size=128,
    intermediate_size=28672,
    vocab_size=128256,
    rotary_embedding_dim=128,
)


def write_model(directory: Path, arch: ModelArch) -> int:
    """Write a model of zeros that takes no room; return its number of parameters."""
    config = {
        "architectures": [arch.architecture],
        "model_type": "llama",
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.intermediate_size,
        "num_hidden_layers": arch.num_hidden_layers,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_key_value_heads,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    infos = []
    for spec in tensor_specs(CheckpointConfig(arch=arch, dtype="bfloat16"), 0):
        for rows in FAMILY.sources(spec, arch):
            infos.append(TensorInfo(name=rows.source, dtype="bfloat16", shape=rows.shape))
    path = directory / "model.safetensors"
    writer = SafetensorsWriter(path, infos)
    writer._file.close()  # its size is set; what is not written stays a hole
    return sum(info.num_bytes for info in infos) // 2


def resident_bytes() -> int:
    """Return what of this process is in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(directory: Path, algo: str) -> None:
    """Calibrate in this process; print bytes and seconds as JSON."""
    model, reasons = examine(directory)
    assert model is not None and not reasons, reasons
    group = 16 if algo == "NVFP4" else 128
    config = CheckpointConfig(
        arch=model.arch,
        dtype="bfloat16",
        quantization=Quantization.of(algo, group_size=group),
    )
    generator = np.random.default_rng(0)
    ids = generator.integers(0, model.arch.vocab_size, (TOKENS // LENGTH, LENGTH), np.int32)
    source = TensorSource(model, config.dtype)
    peak = before = resident_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        Walk(
            config=config,
            algorithm=load_algorithm(algo),
            settings=Settings(algo=algo, dtype=config.dtype, group_size=group),
            data=CalibrationData(sequences=tuple(ids), digest=""),
            read=source.read,
            read_rows=source.read_rows,
            state=State.open(Path(folder), "benchmark"),
            progress=NullProgress(),
        ).run()
    seconds = time.monotonic() - started
    done.set()
    watcher.join()
    print(json.dumps({"bytes": peak - before, "seconds": seconds}))


def formula(arch: ModelArch, algo: str, num_tokens: int) -> Peak:
    """Return the formula's parts for `arch` in bfloat16."""
    config = CheckpointConfig(arch=arch, dtype="bfloat16")
    return peak_bytes(config, load_algorithm(algo), num_tokens=num_tokens, longest=LENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algos", nargs="*", metavar="ALGO", help=", ".join(ALGOS))
    parser.add_argument("--layers", type=int, default=2, help="layers that are calibrated")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    algos = arguments.algos or ALGOS
    if arguments.measure:
        measure(arguments.measure, algos[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = write_model(Path(folder) / "whole", ONE_B)
        cut = replace(ONE_B, num_hidden_layers=arguments.layers)
        write_model(Path(folder) / "model", cut)
        print(
            f"{whole / 1e9:.2f}B parameters, {TOKENS} tokens in sequences of {LENGTH};"
            f" {arguments.layers} of {ONE_B.num_hidden_layers} layers (each takes the same)\n"
        )
        print("| algorithm | measured GiB | formula GiB | s per layer | 70B, 131072 tokens: GiB |")
        print("|---|---|---|---|---|")
        for algo in algos:
            command = [sys.executable, __file__, algo, "--measure", str(Path(folder) / "model")]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result = json.loads(done.stdout)
            expected = formula(ONE_B, algo, TOKENS).memory / GIB
            large = formula(SEVENTY_B, algo, 256 * LENGTH)
            print(
                f"| {algo} | {result['bytes'] / GIB:.2f} | {expected:.2f}"
                f" | {result['seconds'] / arguments.layers:.1f} | {large.memory / GIB:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
