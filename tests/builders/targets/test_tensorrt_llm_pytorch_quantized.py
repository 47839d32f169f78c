"""Quantized checkpoints for the PyTorch backend stand for the numbers of the checkpoint.

They are read in three ways: by the rules of the backend's own loader, written down here number by
number; by llmc as models that are quantized already; and, where it is installed, by transformers
with compressed-tensors.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from llmc import artifacts
from llmc.builders import pipeline
from llmc.builders.hf.reader import HfWeights
from llmc.builders.joining import WholeTensors
from llmc.builders.targets.tensorrt_llm.pytorch_formats import HF_FORMATS
from llmc.builders.targets.tensorrt_llm.pytorch_layout import layout_reasons
from llmc.checkpoint import Checkpoint, Quantization, layer_linears
from llmc.errors import UnsupportedError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from llmc.quant.format import Choice, QuantizedLinear, decode, load_format
from llmc.recipes.loader import Override, load_recipe, parse_set
from llmc.stages import StageResult
from tests.builders.families.tiny_families import CASES, write_case
from tests.builders.hf.prequantized.test_engines import TOKENS, logits
from tests.builders.targets.test_tensorrt_llm_pytorch import checkpoint_of, export
from tests.builders.tiny_hf import write_model

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

WIDE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
PYTORCH = ("target.kind=tensorrt-llm", "target.version=1.3", "target.compute_capability=90")
LITTLE = ("quantization.calibration.samples=4", "quantization.calibration.max_tokens=32")


def build(model: Path, output: Path, *settings: str) -> dict[str, StageResult]:
    overrides = [Override(path=("model",), value=str(model), source="test")]
    overrides += [parse_set(text) for text in (*LITTLE, *settings)]
    results = pipeline.build(
        load_recipe(None, overrides),
        output,
        until="engine",
        progress=NullProgress(),
        report=lambda stage: None,
    )
    return {result.manifest.stage: result for result in results}


def wide(directory: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model of `family` whose sizes every format fits."""
    case = CASES[family]
    settings = {key: value for key, value in case.settings.items() if key != "head_dim"}
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"][:2]
    sizes = case.sizes | WIDE
    monkeypatch.setitem(CASES, "wide", replace(case, settings=settings, sizes=sizes))
    return write_case(directory, "wide")[0]


def options_for(algo: str) -> tuple[str, ...]:
    capability = 100 if algo == "NVFP4" else 90
    return (*PYTORCH[:2], f"target.compute_capability={capability}", f"quantization.algo={algo}")


# What tensorrt_llm/_torch/modules/linear.py and fp4_utils make of a module's tensors: the weight
# [out, in] that the input meets after it was multiplied by pre_quant_scale.


def nibbles(packed: Array) -> tuple[Array, Array]:
    """Return the two numbers -8..7 of each byte, the lower four bits' first."""
    low, high = (packed.view(np.uint8) & 15).astype(int), (packed.view(np.uint8) >> 4).astype(int)
    return np.where(low > 7, low - 16, low), np.where(high > 7, high - 16, high)


def int4_rows(tensors: Tensors, groups: bool) -> Array:
    low, high = nibbles(tensors["weight"])
    values = np.stack([low, high], axis=1).reshape(-1, low.shape[1]).astype(np.float32)
    scale = tensors["weight_scale"].astype(np.float32)
    wide_scale = scale if groups else scale[:, None]
    weight: Array = values * np.repeat(wide_scale, values.shape[1] // wide_scale.shape[1], axis=1)
    return weight


def gptq(tensors: Tensors) -> Array:
    shifts = 4 * np.arange(8)
    qweight, qzeros = tensors["qweight"], tensors["qzeros"]
    codes = ((qweight[:, None, :] >> shifts[None, :, None]) & 15).reshape(-1, qweight.shape[1])
    points = ((qzeros[:, :, None] >> shifts) & 15).reshape(len(qzeros), -1)
    scales = tensors["scales"]
    zeros = ((8 - points).astype(np.float32) * scales.astype(np.float32)).astype(scales.dtype)
    repeats = len(codes) // len(scales)
    scale, zero = (np.repeat(one.astype(np.float32), repeats, axis=0) for one in (scales, zeros))
    weight: Array = ((codes - 8) * scale + zero).T
    return weight


def nvfp4(tensors: Tensors) -> Array:
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([magnitudes, -magnitudes])
    packed = tensors["weight"]
    values = np.stack([table[packed & 15], table[packed >> 4]], axis=2).reshape(len(packed), -1)
    scale = tensors["weight_scale"].astype(np.float32) * tensors["weight_scale_2"]
    weight: Array = values * np.repeat(scale, 16, axis=1)
    return weight


BACKEND: dict[str, Callable[[Tensors], Array]] = {
    "FP8": lambda t: t["weight"].astype(np.float32) * t["weight_scale"].reshape(()),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda t: (
        t["weight"].astype(np.float32) * t["weight_scale"][:, None]
    ),
    "NVFP4": nvfp4,
    "W4A16_AWQ": lambda t: int4_rows(t, groups=True),
    "W4A8_AWQ": lambda t: int4_rows(t, groups=True),
    "W4A16_GPTQ": gptq,
    "W8A16": lambda t: t["weight"] * t["weight_scale"].astype(np.float32)[:, None],
    "W4A16": lambda t: int4_rows(t, groups=False),
}


def module_tensors(directory: Path) -> dict[str, Tensors]:
    """Return the tensors of every module of a Hugging Face checkpoint, by module and suffix."""
    weights = HfWeights.open(directory)
    assert weights.reasons == []
    found: dict[str, Tensors] = {}
    for name in weights.infos:
        module, _, suffix = name.rpartition(".")
        found.setdefault(module, {})[suffix] = weights.read(name)
    return found


def hub_module(checkpoint: Checkpoint, module: str) -> tuple[Array, Tensors]:
    """Return the weight a module of an unsplit checkpoint stands for, and its tensors by role."""
    config, whole = checkpoint.config, WholeTensors(checkpoint)
    algo = config.quantization.of_module(module).quant_algo
    assert algo is not None
    form, kept = load_format(algo), config.stored_format(module)
    tensors = {}
    for role, name in config.linear_tensors(module).items():
        packed = kept is not None and kept.needs_layout and role == "weight"
        tensors[role] = whole.read(whole.specs[name], form.weight_bits if packed else None)
    if kept is None:
        quantized = form.quantize(tensors["weight"], Choice(dtype=config.dtype))
        return decode(form.unpack(quantized)), tensors
    return decode(form.unpack(QuantizedLinear(tensors=tensors))), tensors


PARTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}


def test_every_format_is_read_back() -> None:
    assert BACKEND.keys() == HF_FORMATS.keys()


@pytest.mark.parametrize("algo", BACKEND)
def test_the_backend_meets_the_checkpoints_weights(algo: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", **WIDE)
    results = build(model, tmp_path / "out", *options_for(algo), "dtype=bfloat16")
    checkpoint = Checkpoint.open(results["checkpoint"].directory)
    found = module_tensors(results["engine"].directory)
    for linear in (
        one for layer in range(2) for one in layer_linears(checkpoint.config.arch, layer)
    ):
        prefix, _, kind = linear.name.partition(f"layers.{linear.layer}.")
        assert prefix == "transformer."
        parts = [found[f"model.layers.{linear.layer}.{part}"] for part in PARTS[kind]]
        weight, stored = hub_module(checkpoint, linear.name)
        np.testing.assert_array_equal(
            np.concatenate([BACKEND[algo](part) for part in parts]), weight, linear.name
        )
        for part in parts:
            if "input_scale" in part:
                wanted = stored["activation_scaling_factor"].reshape(())
                assert part["input_scale"].reshape(()) == wanted
            declared = {tensor.suffix for tensor in HF_FORMATS[algo].tensors}
            assert declared - part.keys() <= {"pre_quant_scale"}
    assert not [module for module in found if "lm_head" in module and len(found[module]) > 1]


def test_scales_of_inputs_go_where_the_backend_reads_them(tmp_path: Path) -> None:
    """W4A16_AWQ: into the norm before fused modules; W4A8_AWQ: beside each module."""
    model = write_model(tmp_path / "model", **WIDE)
    for algo in ("W4A16_AWQ", "W4A8_AWQ"):
        results = build(model, tmp_path / algo, *options_for(algo), "dtype=bfloat16")
        checkpoint = Checkpoint.open(results["checkpoint"].directory)
        found = module_tensors(results["engine"].directory)
        layer, hub = "model.layers.1.", "transformer.layers.1."
        read = checkpoint.rank(0).read
        for norm, own, fused in (
            ("input_layernorm", "input_layernorm", "attention.qkv"),
            ("post_attention_layernorm", "post_layernorm", "mlp.fc"),
        ):
            plain, scale = (
                read(f"{hub}{own}.weight"),
                read(f"{hub}{fused}.prequant_scaling_factor"),
            )
            assert (scale != scale[0]).any()
            folded = (plain.astype(np.float32) * scale.astype(np.float32)).astype(plain.dtype)
            wanted = folded if algo == "W4A16_AWQ" else plain
            np.testing.assert_array_equal(found[f"{layer}{norm}"]["weight"], wanted)
        has_scale = {
            part: "pre_quant_scale" in found[f"{layer}{part}"]
            for parts in PARTS.values()
            for part in parts
        }
        alone = {"self_attn.o_proj", "mlp.down_proj"}
        assert {part for part, has in has_scale.items() if has} == (
            alone if algo == "W4A16_AWQ" else has_scale.keys()
        )


def test_both_halves_of_an_mlp_have_the_same_scales(tmp_path: Path) -> None:
    """The backend makes one module of them and asserts it."""
    model = write_model(tmp_path / "model", **WIDE)
    for algo in ("NVFP4", "W4A8_AWQ"):
        results = build(model, tmp_path / algo, *options_for(algo), "dtype=float16")
        found = module_tensors(results["engine"].directory)
        for scale in ("input_scale", "weight_scale_2"):
            halves = [found[f"model.layers.0.mlp.{half}_proj"][scale] for half in ("gate", "up")]
            assert halves[0] == halves[1], (algo, scale)


@pytest.mark.parametrize(
    ("family", "algo", "kv_cache"),
    [
        ("llama", "FP8", "FP8"),
        ("llama", "NVFP4", None),
        ("mistral", "W4A16_AWQ", None),
        ("mistral", "FP8_PER_CHANNEL_PER_TOKEN", "FP8"),
        ("qwen2", "W4A8_AWQ", None),
        ("qwen2", "W4A16_GPTQ", None),
        ("qwen2-window", "FP8", None),
        ("qwen3", "W4A8_AWQ", "FP8"),
        ("gemma2", "FP8", "FP8"),
        ("gemma2", "W4A16_GPTQ", None),
        ("gemma3", "W4A16_AWQ", None),
        ("phi3", "FP8", None),
        ("phi3", "NVFP4", None),
        ("mixtral", "FP8", "FP8"),
        ("qwen2_moe", "FP8", None),
    ],
)
def test_llmc_reads_it_back(
    family: str, algo: str, kv_cache: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wide(tmp_path / "model", family, monkeypatch)
    kv = () if kv_cache is None else (f"quantization.kv_cache={kv_cache}",)
    settings = (*options_for(algo), *kv, "dtype=bfloat16")
    made = build(model, tmp_path / "out", *settings)
    again = build(made["engine"].directory, tmp_path / "again", "target.kind=cpu")
    first, second = (Checkpoint.open(results["checkpoint"].directory) for results in (made, again))
    assert second.config.quantization.quant_algo == algo
    assert second.config.quantization.kv_cache_quant_algo == kv_cache
    wanted, found = first.rank(0), second.rank(0)
    assert wanted.infos == found.infos
    for name in wanted.infos:
        one, other = wanted.read(name), found.read(name)
        if algo == "W4A16_AWQ" and ("prequant" in name or "norm" in name):
            continue  # a product of both: test_scales_of_inputs_go_where_the_backend_reads_them
        if name.endswith("weights_scaling_factor_2") and algo == "W4A8_AWQ":
            assert other >= one  # the larger of both halves of an MLP
            continue
        assert one.tobytes() == other.tobytes(), name


def test_experts_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wide(tmp_path / "model", "mixtral", monkeypatch)
    made = build(model, tmp_path / "out", *options_for("FP8"), "dtype=bfloat16")
    checkpoint = Checkpoint.open(made["checkpoint"].directory)
    found = module_tensors(made["engine"].directory)
    read = checkpoint.rank(0).read
    prefix = "transformer.layers.1.mlp"
    fused, scales = read(f"{prefix}.fc.weight"), read(f"{prefix}.fc.weights_scaling_factor")
    down = read(f"{prefix}.proj.weight")
    inner = WIDE["intermediate_size"]
    for expert in range(4):
        module = f"model.layers.1.block_sparse_moe.experts.{expert}"
        up, gate = found[f"{module}.w3"], found[f"{module}.w1"]
        assert up["weight"].tobytes() == fused[expert, :inner].tobytes()
        assert gate["weight"].tobytes() == fused[expert, inner:].tobytes()
        assert up["weight_scale"] == gate["weight_scale"] == scales[expert]
        assert found[f"{module}.w2"]["weight"].tobytes() == down[expert].tobytes()
    settings = json.loads((made["engine"].directory / "hf_quant_config.json").read_text())
    excluded = settings["quantization"]["exclude_modules"]
    assert {*excluded} == {"lm_head", *(f"model.layers.{n}.block_sparse_moe.gate" for n in (0, 1))}


def test_rows_in_another_order_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phi-3's gate_up_proj begins with the gate, a checkpoint's mlp.fc with the other half."""
    model = wide(tmp_path / "model", "phi3", monkeypatch)
    for algo in ("FP8", "NVFP4"):
        made = build(model, tmp_path / algo, *options_for(algo), "dtype=bfloat16")
        checkpoint = Checkpoint.open(made["checkpoint"].directory)
        found = module_tensors(made["engine"].directory)
        weight, _ = hub_module(checkpoint, "transformer.layers.1.mlp.fc")
        wanted = np.concatenate([weight[256:], weight[:256]])
        part = found["model.layers.1.mlp.gate_up_proj"]
        np.testing.assert_array_equal(BACKEND[algo](part), wanted)


def test_what_is_left_plain_is_named_as_the_backend_names_it(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", **WIDE)
    plain = (
        'quantization.exclude=["lm_head","*layers.0.attention.qkv","*layers.1.mlp.fc",'
        '"*layers.1.mlp.gate"]'
    )
    made = build(model, tmp_path / "out", *options_for("FP8"), plain)
    settings = json.loads((made["engine"].directory / "hf_quant_config.json").read_text())
    excluded = settings["quantization"]["exclude_modules"]
    attention, mlp = "model.layers.0.self_attn.", "model.layers.1.mlp."
    assert {*excluded} == {
        "lm_head",
        *(f"{attention}{name}" for name in ("q_proj", "k_proj", "v_proj", "qkv_proj")),
        *(f"{mlp}{name}" for name in ("gate_proj", "up_proj", "gate_up_proj")),
    }
    again = build(made["engine"].directory, tmp_path / "again", "target.kind=cpu")
    first, second = (
        Checkpoint.open(results["checkpoint"].directory).rank(0) for results in (made, again)
    )
    assert first.infos == second.infos
    assert all(first.read(n).tobytes() == second.read(n).tobytes() for n in first.infos)


def test_transformers_computes_what_the_cpu_engine_does(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors", reason="pip install compressed-tensors")
    model = write_model(tmp_path / "model", **WIDE)
    settings = ("quantization.algo=FP8", "dtype=float32")
    made = build(model, tmp_path / "out", *PYTORCH, *settings)
    limits = ("build.max_num_tokens=64", "build.max_batch_size=4")
    engine = build(model, tmp_path / "cpu", *settings, *limits)["engine"].directory
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        made["engine"].directory, dtype=torch.float32
    )
    with torch.no_grad():
        found = loaded(torch.tensor([TOKENS])).logits[0].numpy()
    # Both round inputs to FP8 and compute in float32; sums differ in order alone.
    np.testing.assert_allclose(found, logits(engine), rtol=0, atol=1e-4)


def test_stage_is_whole_reused_and_never_split(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", **WIDE)
    asked = (*options_for("FP8_PER_CHANNEL_PER_TOKEN"), "mapping.tp=2")
    first = build(model, tmp_path / "out", *asked)
    engine = first["engine"].directory
    assert [*first] == ["checkpoint", "engine"] and artifacts.verify(engine) == []
    assert {path.name for path in engine.iterdir()} == {
        *("config.json", "hf_quant_config.json", "model.safetensors", "manifest.json"),
        *("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    }
    checkpoint = Checkpoint.open(first["checkpoint"].directory)
    assert checkpoint.config.num_rank_files == 1
    assert all(stage.cached for stage in build(model, tmp_path / "out", *asked).values())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("quantization.algo=W8A8_SQ_PER_CHANNEL",), "1.3 has W8A16, W4A16, W4A16_AWQ"),
        (("quantization.algo=FP8", "quantization.kv_cache=INT8"), "1.3 has FP8"),
        (("target.strip_plan=true",), "target.strip_plan: True is about an engine's weights"),
        (("mapping.tp=3",), "tp_size 3 does not divide num_attention_heads 4"),
    ],
)
def test_what_the_backend_lacks_is_one_line(
    settings: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", **WIDE)
    with pytest.raises(UnsupportedError) as caught:
        build(model, tmp_path / "out", *PYTORCH, *settings)
    assert any(reason in line for line in caught.value.reasons), caught.value.reasons
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "algo", "reason"),
    [
        ("gpt2", None, "GPT2LMHeadModel: the PyTorch backend of TensorRT-LLM 1.3 has no model"),
        ("mixtral", "W8A16", "fc: W8A16; of experts the PyTorch backend reads FP8, NVFP4"),
        (
            "cohere2",
            "W4A16_AWQ",
            "qkv: W4A16_AWQ, whose scales of inputs belong into the",
        ),
        ("phi3", "W4A16_AWQ", "qkv: W4A16_AWQ; of qkv_proj the PyTorch backend reads FP8, NVFP4"),
    ],
)
def test_what_a_family_lacks_is_one_line(
    family: str,
    algo: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if family == "gpt2":
        model = write_case(tmp_path / "model", family)[0]
    else:
        model = wide(tmp_path / "model", family, monkeypatch)
    asked = PYTORCH if algo is None else options_for(algo)
    with pytest.raises(UnsupportedError) as caught:
        build(model, tmp_path / "out", *asked, "dtype=bfloat16")
    assert any(reason in line for line in caught.value.reasons), caught.value.reasons


def test_formats_by_module_are_named_by_module(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", **WIDE)
    layers = [f"transformer.layers.{layer}" for layer in range(2)]
    algos = {f"{layer}.attention.dense": "W8A16" for layer in layers}
    algos |= {f"{layers[0]}.mlp.{half}": "W4A16" for half in ("fc", "gate")}
    algos |= {f"{layers[1]}.attention.qkv": "W4A16"}
    checkpoint = checkpoint_of(
        model,
        tmp_path / "checkpoint",
        Mapping(),
        quantization=Quantization.mixed(algos),
        dtype="bfloat16",
        layout="sm80",
    )
    assert list(layout_reasons(checkpoint.config)) == []
    out = export(checkpoint, tmp_path / "out")
    settings = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    assert settings["quant_algo"] == "MIXED_PRECISION"
    rows = {"quant_algo": "W4A16"}
    assert settings["quantized_layers"] == {
        **{f"model.layers.{n}.self_attn.o_proj": {"quant_algo": "W8A16"} for n in (0, 1)},
        **{f"model.layers.0.mlp.{half}_proj": rows for half in ("gate", "up")},
        **{f"model.layers.1.self_attn.{part}_proj": rows for part in "qkv"},
    }
    found = module_tensors(out)
    for module, algo in algos.items():
        layer, _, kind = module.removeprefix("transformer.layers.").partition(".")
        parts = [BACKEND[algo](found[f"model.layers.{layer}.{part}"]) for part in PARTS[kind]]
        weight, _ = hub_module(checkpoint, module)
        np.testing.assert_array_equal(np.concatenate(parts), weight, module)
    plain = found["model.layers.0.self_attn.q_proj"]
    assert plain.keys() == {"weight"} and plain["weight"].dtype.name == "bfloat16"


def test_halves_of_an_mlp_in_different_formats_are_a_reason(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", **WIDE)
    one = Quantization.of("W8A16", exclude_modules=("lm_head", "*layers.1.mlp.fc"))
    checkpoint = checkpoint_of(model, tmp_path / "checkpoint", Mapping(), quantization=one)
    (reason,) = layout_reasons(checkpoint.config)
    assert reason.startswith("layer 1: fc none, gate W8A16, of which")


def test_folded_scales_compute_the_same(tmp_path: Path) -> None:
    """The checkpoint read back has the scales in its norms; its CPU engine answers alike."""
    model = write_model(tmp_path / "model", **WIDE)
    settings = ("quantization.algo=W4A16_AWQ", "dtype=float16")
    limits = ("target.kind=cpu", "build.max_num_tokens=64", "build.max_batch_size=4")
    made = build(model, tmp_path / "out", *PYTORCH, *settings)["engine"].directory
    again = build(made, tmp_path / "again", *limits)["engine"].directory
    direct = build(model, tmp_path / "direct", *settings, *limits)["engine"].directory
    # The norms of this model are ones, so that their products with scales are exact.
    np.testing.assert_array_equal(logits(again), logits(direct))
