"""What plans of TensorRT for RTX take to build, and what they launch: time, memory, size, kernels.

    python benchmarks/tensorrt_build.py [--model 135m|1b|8b|70b ...] [--quant ALGO ...]
        [--capability NN ...] [--layers N] [--max-seq-len N]

Every plan is built by a process of its own, as `llmc build` does. "135m" is SmolLM2-135M of
demo/smollm2 with its weights in the plan, converted and quantized first (not counted); the others
are Llama 3's shapes, whose weights are placeholders. 70b takes minutes and must be asked for.
`--layers` cuts a shape short, to see what a layer takes.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from llmc.arch import ModelArch
from llmc.builders import pipeline
from llmc.builders.network import build_network
from llmc.builders.targets import BuildLimits, tensorrt_rtx
from llmc.builders.targets.tensorrt_compile import PROFILES, Built
from llmc.builders.targets.tensorrt_evidence import expected_of, gather
from llmc.builders.targets.tensorrt_worker import Job, build_in_worker
from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization
from llmc.log import NullProgress
from llmc.recipes.loader import Override, load_recipe
from llmc.recipes.schema import TensorRtxTarget

DEMO = Path("demo/smollm2")
ALGOS = ("none", "FP8", "W8A16", "W4A16")
MIB = 2**20

ONE_B = ModelArch(
    architecture="LlamaForCausalLM",
    hidden_size=2048,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_size=64,
    intermediate_size=8192,
    vocab_size=128256,
    max_position_embeddings=8192,
    rotary_embedding_dim=64,
    rotary_base=500000.0,
)
EIGHT_B = replace(
    ONE_B,
    hidden_size=4096,
    num_hidden_layers=32,
    head_size=128,
    intermediate_size=14336,
    rotary_embedding_dim=128,
)
SEVENTY_B = replace(
    EIGHT_B,
    hidden_size=8192,
    num_hidden_layers=80,
    num_attention_heads=64,
    intermediate_size=28672,
)
SHAPES = {"1b": ONE_B, "8b": EIGHT_B, "70b": SEVENTY_B}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    models = ("135m", *SHAPES)
    parser.add_argument("--model", nargs="+", choices=models, default=["135m", "1b", "8b"])
    parser.add_argument("--quant", nargs="+", metavar="ALGO", default=ALGOS)
    parser.add_argument("--capability", nargs="+", type=int, default=[89, 120])
    parser.add_argument("--layers", type=int)
    parser.add_argument("--max-seq-len", type=int, default=4096)
    given = parser.parse_args()
    limits = BuildLimits(
        max_batch_size=8,
        max_num_tokens=2048,
        max_input_len=given.max_seq_len - 1,
        max_seq_len=given.max_seq_len,
        tokens_per_block=64,
    )
    print("| model | quant_algo | GPU | CPU s | peak MiB | plan MiB | attention | products |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="llmc-plans-") as scratch:
        for model in given.model:
            for algo in given.quant:
                source = open_source(model, algo, given.layers, Path(scratch))
                for capability in given.capability:
                    line = build_one(source, capability, limits, Path(scratch) / "plan")
                    print(f"| {model} | {algo} | {capability} | {' | '.join(line)} |", flush=True)


def open_source(
    model: str, algo: str, layers: int | None, scratch: Path
) -> Checkpoint | CheckpointConfig:
    """Return the checkpoint of 135m, made now, or the config of a shape."""
    if model in SHAPES:
        arch = SHAPES[model]
        if layers is not None:
            arch = replace(arch, num_hidden_layers=layers)
        quantization = Quantization() if algo == "none" else Quantization.of(algo, None)
        return CheckpointConfig(arch=arch, dtype="float16", quantization=quantization)
    values = {("model",): str(DEMO), ("dtype",): "float16"}
    if algo != "none":
        values["quantization", "algo"] = algo
    overrides = [
        Override(path=path, value=value, source="benchmark") for path, value in values.items()
    ]
    (made,) = pipeline.build(
        load_recipe(None, overrides),
        scratch / algo,
        until="checkpoint",
        progress=NullProgress(),
        report=lambda stage: None,
    )
    return Checkpoint.open(made.directory)


def build_one(
    source: Checkpoint | CheckpointConfig, capability: int, limits: BuildLimits, path: Path
) -> Iterator[str]:
    """Build a plan; yield what it took and what it launches, or why there is none."""
    config = source.config if isinstance(source, Checkpoint) else source
    options = TensorRtxTarget(kind="tensorrt-rtx", compute_capabilities=(capability,))
    reasons = tensorrt_rtx.unsupported(config, limits, options)
    if reasons:
        yield from ("", "", "", "", "; ".join(reasons))
        return
    is_whole = isinstance(source, Checkpoint)
    job = Job(
        target="tensorrt-rtx",
        config=config.to_json(),
        checkpoint=str(source.directory) if isinstance(source, Checkpoint) else None,
        rank=0,
        capabilities=(capability,),
        limits=asdict(limits),
        weights="embed" if is_whole else "refit",
        output=str(path),
    )
    built, _ = build_in_worker(job, lambda phase, done, total: None)
    yield from describe(built, config, path, embeds=is_whole)
    path.unlink()


def describe(built: Built, config: CheckpointConfig, path: Path, *, embeds: bool) -> Iterator[str]:
    """Yield the numbers and, as the plan says them, its kernels: "context / generation"."""
    expected = expected_of(build_network(config, 0), config.dtype, embeds=embeds)
    facts, problems = gather(path, expected, PROFILES)
    yield f"{built.cpu_seconds:.0f}"
    yield f"{built.peak_memory_bytes / MIB:.0f}"
    yield f"{built.size_bytes / MIB:.0f}"
    programs = facts.get("programs", {}).values()
    yield " / ".join(str(sum(one["attention"].values())) for one in programs)
    counted = dict.fromkeys(
        ", ".join(f"{count} {label}" for label, count in sorted(one["gemms"].items()))
        for one in programs
    )
    yield " / ".join(counted) + "".join(f"; {problem}" for problem in problems)


if __name__ == "__main__":
    main()
