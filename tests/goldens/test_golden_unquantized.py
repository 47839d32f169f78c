"""Our checkpoints against those of NVIDIA's converter: config.json and each tensor's bytes."""

import json
from pathlib import Path

import pytest

from llmc.builders.convert import convert
from llmc.builders.families import FAMILIES
from llmc.checkpoint import Checkpoint, CheckpointConfig, Quantization, tensor_schema
from llmc.errors import CheckpointError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.goldens import golden

UNQUANTIZED = [name for name in golden.CHECKPOINTS if "-quant-" not in name and "-kv-" not in name]
NULL_ALPHA = ("GemmaForCausalLM", "Gemma2ForCausalLM")
SELF_DESCRIBING = (
    *("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"),
    *("MixtralForCausalLM", "Qwen2MoeForCausalLM"),
)
MLP_BIASES = tuple(f"mlp.{module}.bias" for module in ("fc", "gate", "proj"))


def test_golden_checkpoints_are_of_known_families() -> None:
    wanted = {golden.load_checkpoint(name)["config"]["architecture"] for name in UNQUANTIZED}
    assert wanted <= FAMILIES.keys() and len(UNQUANTIZED) >= 28


@pytest.mark.parametrize("name", UNQUANTIZED)
def test_golden_checkpoint_is_equal(name: str, tmp_path: Path) -> None:
    wanted = golden.load_checkpoint(name)
    keeps_mlp_biases = name == "llama-bias"  # NVIDIA's converter drops them; see README.md here
    config = wanted["config"]
    model_dir = golden.write_model(tmp_path / "model", wanted["model"])
    output_dir = tmp_path / "checkpoint"
    output_dir.mkdir()

    made = convert(
        model_dir,
        output_dir,
        dtype=config["dtype"],
        mapping=Mapping.from_json(config["mapping"]),
        quantization=Quantization(),
        use_parallel_embedding=config["use_parallel_embedding"],
        embedding_sharding_dim=config["embedding_sharding_dim"],
        progress=NullProgress(),
        workers=2,
    )

    written = json.loads((output_dir / "config.json").read_text())
    written.pop("llmc", None)
    if keeps_mlp_biases:
        assert written["mlp_bias"] is True
        config["mlp_bias"] = True
    if config["architecture"] in NULL_ALPHA:
        assert config["quantization"]["smoothquant_val"] is None
        config["quantization"]["smoothquant_val"] = 0.5
    assert written == config
    assert CheckpointConfig.from_json(json.loads((output_dir / "config.json").read_text())) == made

    checkpoint = Checkpoint.open(output_dir)
    rank_files = {path.name for path in output_dir.glob("rank*")}
    assert rank_files == wanted["ranks"].keys()
    for rank in range(len(rank_files)):
        file = checkpoint.rank(rank)
        digests = {tensor: golden.sha256(file.read(tensor)) for tensor in file.infos}
        if keeps_mlp_biases:
            biases = [tensor for tensor in digests if tensor.endswith(MLP_BIASES)]
            assert len(biases) == 2 * len(MLP_BIASES)
            for tensor in biases:
                del digests[tensor]
        entries = wanted["ranks"][f"rank{rank}.safetensors"]
        assert digests == {tensor: entry["sha256"] for tensor, entry in entries.items()}
        for tensor, entry in entries.items():
            assert file.infos[tensor].shape == tuple(entry["shape"])
            assert file.infos[tensor].dtype == entry["dtype"]


@pytest.mark.parametrize("name", UNQUANTIZED)
def test_golden_config_reads_back(name: str) -> None:
    """A checkpoint of NVIDIA's own is read where its keys say all; another is refused."""
    wanted = golden.load_checkpoint(name)
    if wanted["config"]["architecture"] not in SELF_DESCRIBING:
        with pytest.raises(CheckpointError, match="llmc.arch: missing"):
            CheckpointConfig.from_json(wanted["config"])
        return
    config = CheckpointConfig.from_json(wanted["config"])
    assert config.to_json() == wanted["config"]
    for rank in range(config.num_rank_files):
        entries = wanted["ranks"][f"rank{rank}.safetensors"]
        schema = tensor_schema(config, rank)
        assert {name: (info.dtype, list(info.shape)) for name, info in schema.items()} == {
            name: (entry["dtype"], entry["shape"]) for name, entry in entries.items()
        }


def test_golden_mistral_keeps_its_sliding_window(tmp_path: Path) -> None:
    """TensorRT-LLM's config.json cannot say it; silence would change what the model computes."""
    model_dir = golden.write_model(tmp_path / "model", "mistral")
    (tmp_path / "checkpoint").mkdir()
    config = convert(
        model_dir,
        tmp_path / "checkpoint",
        dtype=None,
        mapping=Mapping(),
        quantization=Quantization(),
        progress=NullProgress(),
        workers=1,
    )
    assert config.arch.sliding_window == 64
    assert Checkpoint.open(tmp_path / "checkpoint").config == config
