"""The target tensorrt-rtx: every no has a reason, plans show what they do, errors are ours.

One small plan is built; everything else reads it or is decided before a build.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from llmc.artifacts import read_manifest
from llmc.builders import pipeline
from llmc.builders.network import build_network
from llmc.builders.targets import BuildLimits, tensorrt_rtx
from llmc.builders.targets.tensorrt_capabilities import CLASSES, EMULATED, REFUSED, plans_of
from llmc.builders.targets.tensorrt_evidence import Expected, contradictions, expected_of
from llmc.builders.targets.tensorrt_plan import (
    Launch,
    NotReadableError,
    Program,
    read_plan,
)
from llmc.builders.targets.tensorrt_worker import Job, build_in_worker
from llmc.checkpoint import CheckpointConfig, Quantization
from llmc.errors import BuildError, CheckpointError
from llmc.log import NullProgress
from llmc.quant import FORMATS
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.recipes.schema import TensorRtxTarget
from tests.builders.tiny_hf import write_model
from tests.plugins.tiny_llama import TinyLlama

TRT = pytest.importorskip(
    "tensorrt_rtx_bindings", reason="needs TensorRT for RTX: pip install .[rtx]"
)

LIMITS = BuildLimits(
    max_batch_size=4, max_num_tokens=64, max_input_len=63, max_seq_len=64, tokens_per_block=32
)
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
PLAN = "rank0.sm89.engine"


@pytest.fixture(scope="module")
def config() -> CheckpointConfig:
    tiny = TinyLlama.make(hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    config: CheckpointConfig = tiny.config()
    return replace(config, dtype="float16")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of INT8 weights, for compute capability 89."""
    root = tmp_path_factory.mktemp("rtx")
    model = write_model(root / "model", **SIZES)
    settings = (
        *("dtype=float16", "quantization.algo=W8A16", "build.max_batch_size=4"),
        *("target.kind=tensorrt-rtx", "target.compute_capabilities=[89]"),
    )
    override = Override(path=("model",), value=str(model), source="test")
    recipe = load_recipe(None, [override, *map(parse_set, settings)])
    pipeline.build(
        recipe, root / "out", until="engine", progress=NullProgress(), report=lambda stage: None
    )
    return root / "out" / "engine"


def target(**changes: Any) -> TensorRtxTarget:
    return TensorRtxTarget(kind="tensorrt-rtx", **changes)


def test_plan_shows_fused_attention_and_int8_products(engine: Path) -> None:
    plan = json.loads((engine / "config.json").read_text())["llmc"]["plans"][0]
    assert (plan["file"], plan["accelerators"]) == (PLAN, ["sm89"])
    assert list(plan["programs"]) == ["context", "generation"]
    for program in plan["programs"].values():
        assert sum(program["attention"].values()) == 1
        assert program["gemms"]["half x int8"] >= 4
        assert not program["dequantizes"] and not program["collectives"]


def test_manifest_says_what_it_took(engine: Path) -> None:
    measured: Any = read_manifest(engine).measured["plans"]
    assert measured[PLAN]["size_bytes"] == (engine / PLAN).stat().st_size
    assert read_manifest(engine).tools["tensorrt_rtx"] == TRT.__version__
    assert measured[PLAN]["peak_memory_bytes"] > 1 << 27 and measured[PLAN]["cpu_seconds"] > 0


def test_what_the_plan_lacks_is_named(engine: Path, config: CheckpointConfig) -> None:
    quantized = replace(config, quantization=Quantization(quant_algo="W8A16"))
    wanted = expected_of(build_network(quantized, 0), "float16", embeds=True)
    context = read_plan(engine / PLAN).programs[0]
    assert contradictions(context, wanted) == [
        "1 fused attention kernels, expected 2",
        "4 products, expected at least 8",
        "4 products of half x int8, expected at least 8",
    ]


@pytest.mark.parametrize(
    ("launches", "said"),
    [
        ([("gemm", "f", ("half", "half"))] * 3, "0 products of int8 x int8, expected at least 2"),
        (
            [("gemm", "f", ("int8", "int8"))] * 2 + [("gemm", "f", ("half", "half"))] * 2,
            "2 products",
        ),
        (
            [("gemm", "f", ("int8", "int8"))] * 2 + [("other", "Cast", ("int8",))],
            "Cast dequantizes",
        ),
        (
            [("gemm", "__myl_CastMulCastCastMulCastFc", ("float", "int8", "int8"))] * 2,
            "0 products of int8 x int8, expected at least 2",
        ),
        ([("gemm", "f", ("int8", "int8"))], "1 products, expected at least 2"),
        ([("gemm", "f", ("int8", "int8"))] * 2 + [("collective", "c", ())], "1 collectives"),
    ],
)
def test_emulation_is_seen(launches: list[Any], said: str) -> None:
    program = Program(
        accelerators=("sm89",),
        launches=tuple(
            Launch(kind=kind, kernel=name, types=types, made=("half",))
            for kind, name, types in launches
        ),
    )
    expected = Expected(max_wide_gemms=1, products=2)
    expected.gemms["int8 x int8"] = 2
    assert any(said in line for line in contradictions(program, expected))


def test_scales_that_are_moved_are_not_dequantized() -> None:
    """NVFP4 lays block scales out anew before a product."""
    moved = Launch(kind="other", kernel="Move", types=("fp8_e4m3",), made=("fp8_e4m3",))
    assert Program(accelerators=("sm120",), launches=(moved,)).dequantizes == ()


def test_plan_of_an_unknown_version_is_not_readable(engine: Path, tmp_path: Path) -> None:
    data = bytearray((engine / PLAN).read_bytes())
    data[0x19] = 9
    (tmp_path / "newer").write_bytes(data)
    with pytest.raises(NotReadableError, match=r"version 1\.9\.1\.116"):
        read_plan(tmp_path / "newer")
    (tmp_path / "cut").write_bytes(data[:64])
    with pytest.raises(CheckpointError, match="not a TensorRT for RTX plan"):
        read_plan(tmp_path / "cut")


@pytest.mark.parametrize("algo", FORMATS)
@pytest.mark.parametrize("capability", [group[0] for group in CLASSES])
def test_every_quantization_builds_or_has_a_reason(
    config: CheckpointConfig, algo: str, capability: int
) -> None:
    layout = "sm80" if algo == "W4A16_GPTQ" else None
    quantized = replace(config, quantization=Quantization.of(algo, None), layout=layout)
    reasons = tensorrt_rtx.unsupported(
        quantized, LIMITS, target(compute_capabilities=(capability,))
    )
    known = REFUSED.get(algo, {}) | EMULATED.get(algo, {})
    assert (
        any(known[capability] in reason for reason in reasons)
        if capability in known
        else (reasons == [])
    )


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"dtype": "float32"}, {}, "dtype: float32"),
        (
            {"dtype": "bfloat16"},
            {"compute_capabilities": (75,)},
            "begins with compute capability 80",
        ),
        (
            {"quantization": Quantization(kv_cache_quant_algo="INT8")},
            {"compute_capabilities": (89,)},
            "stays in 16 bits",
        ),
        (
            {"quantization": Quantization(kv_cache_quant_algo="FP8")},
            {"compute_capabilities": (80,)},
            "KV cache of FP8 on compute capability 80: FP8 begins",
        ),
        (
            {"quantization": Quantization(kv_cache_quant_algo="FP8")},
            {"weights": "refit"},
            "does not know the cache's scale",
        ),
        ({}, {"compute_capabilities": ()}, "expected at least one"),
    ],
)
def test_every_no_has_a_reason(
    config: CheckpointConfig, changes: Any, options: Any, said: str
) -> None:
    assert tensorrt_rtx.unsupported(config, LIMITS, target()) == []
    (reason,) = tensorrt_rtx.unsupported(replace(config, **changes), LIMITS, target(**options))
    assert said in reason


def test_a_class_is_one_plan_unless_refitted() -> None:
    assert plans_of((121, 86, 80, 120, 89)) == [(80, 86), (89,), (120, 121)]
    assert plans_of((86, 80), refit=True) == [(80,), (86,)]


def test_builders_error_is_ours(config: CheckpointConfig, tmp_path: Path) -> None:
    fp8 = replace(config, quantization=Quantization.of("FP8", None))
    job = Job(
        target="tensorrt-rtx",
        config=fp8.to_json(),
        checkpoint=None,
        rank=0,
        capabilities=(80,),
        limits=asdict(LIMITS),
        weights="refit",
        output=str(tmp_path / "plan"),
    )
    with pytest.raises(BuildError, match=r"sm80.*fp8_e4m3"):
        build_in_worker(job, lambda phase, done, total: None)
    assert list(tmp_path.iterdir()) == []


def test_a_dead_builder_is_an_error(config: CheckpointConfig, tmp_path: Path) -> None:
    job = Job(
        target="tensorrt-rtx",
        config=config.to_json(),
        checkpoint=None,
        rank=0,
        capabilities=(89,),
        limits={"no": 1},
        weights="refit",
        output=str(tmp_path / "plan"),
    )
    with pytest.raises(BuildError, match=r"died building plan, with exit code 1: .+"):
        build_in_worker(job, lambda phase, done, total: None)
