"""Rules read backwards: a checkpoint of any split gives back the model it was made of."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from llmc.builders.convert import convert
from llmc.builders.families.family import load_family
from llmc.builders.hf.reader import HfWeights
from llmc.builders.joining import WholeTensors
from llmc.builders.targets.tensorrt_llm import pytorch_export
from llmc.builders.targets.tensorrt_llm.pytorch_dialect import ARCHITECTURES
from llmc.builders.targets.tensorrt_llm.pytorch_layout import layout_reasons
from llmc.checkpoint import Checkpoint, Quantization
from llmc.errors import CheckpointError
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.builders.families.tiny_families import CASES, prompt, write_case
from tests.builders.tiny_hf import write_model

GIVEN_BACK = [name for name in CASES if name != "opt"]
"""OPT's first two positions are in no checkpoint."""


def checkpoint_of(model: Path, output: Path, mapping: Mapping, **choices: Any) -> Checkpoint:
    output.mkdir()
    defaults: dict[str, Any] = {"dtype": None, "quantization": Quantization()}
    convert(
        model,
        output,
        mapping=mapping,
        progress=NullProgress(),
        workers=2,
        **defaults | choices,
    )
    return Checkpoint.open(output)


def export(checkpoint: Checkpoint, output: Path) -> Path:
    output.mkdir()
    pytorch_export.export(checkpoint, output, NullProgress())
    return output


def tensors_of(directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    weights = HfWeights.open(directory)
    assert weights.reasons == []
    return {name: weights.read(name) for name in weights.infos}


@pytest.mark.parametrize("name", GIVEN_BACK)
def test_a_split_checkpoint_gives_the_model_back(name: str, tmp_path: Path) -> None:
    model_dir, model = write_case(tmp_path / "model", name)
    moe = {"moe_tp_size": 1, "moe_ep_size": 2} if name in ("mixtral", "gpt_oss") else {}
    mapping = Mapping(tp_size=2, pp_size=2, **moe)
    checkpoint = checkpoint_of(model_dir, tmp_path / "checkpoint", mapping)
    assert not list(layout_reasons(checkpoint.config))
    found, wanted = tensors_of(export(checkpoint, tmp_path / "out")), tensors_of(model_dir)
    assert found.keys() == wanted.keys()
    family = load_family(checkpoint.config.arch.architecture)
    less_one = any(rule.plus_one for rule in (*family.rules, *family.layer_rules))
    for tensor, values in wanted.items():
        if less_one and "norm" in tensor:
            # A checkpoint keeps the norm as 1 + weight, rounded.
            np.testing.assert_array_equal(1 + found[tensor], 1 + values, tensor)
        else:
            assert found[tensor].tobytes() == values.tobytes(), tensor
    if checkpoint.config.arch.architecture not in ARCHITECTURES:
        return
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", attn_implementation=CASES[name].attention, dtype=torch.float32
    )
    ids = torch.tensor([prompt(model.config.vocab_size)])
    with torch.no_grad():
        difference = (again.eval()(ids).logits - model(ids).logits).abs().max()
    # Of the rounding of 1 + weight alone.
    assert difference <= (1e-4 if less_one else 0)


def test_rows_that_no_checkpoint_has_are_a_reason(tmp_path: Path) -> None:
    model_dir, _ = write_case(tmp_path / "model", "opt")
    checkpoint = checkpoint_of(model_dir, tmp_path / "checkpoint", Mapping())
    (reason,) = layout_reasons(checkpoint.config)
    assert "embed_positions.weight (66, 64): 2 of 66 rows" in reason


def test_shards_have_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_export, "SHARD_BYTES", 60_000)
    model = write_model(tmp_path / "model")
    checkpoint = checkpoint_of(model, tmp_path / "checkpoint", Mapping())
    out = export(checkpoint, tmp_path / "out")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    shards = sorted({*index["weight_map"].values()})
    assert shards == sorted(path.name for path in out.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    found, wanted = tensors_of(out), tensors_of(model)
    assert {name: v.tobytes() for name, v in found.items()} == {
        name: v.tobytes() for name, v in wanted.items()
    }
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in wanted.values())


def test_config_is_the_models_own(tmp_path: Path) -> None:
    remote = {"AutoConfig": "configuration_x.Config"}
    model = write_model(tmp_path / "model", auto_map=remote, rope_theta=500.0)
    checkpoint = checkpoint_of(model, tmp_path / "c", Mapping(), dtype="float16")
    out = export(checkpoint, tmp_path / "out")
    wanted = json.loads((model / "config.json").read_text()) | {"torch_dtype": "float16"}
    del wanted["auto_map"]
    assert json.loads((out / "config.json").read_text()) == wanted
    assert not (out / "hf_quant_config.json").exists()
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


def test_scales_of_each_rank_are_of_no_whole_weight(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    rows = Quantization.of("FP8_PER_CHANNEL_PER_TOKEN")
    checkpoint = checkpoint_of(model, tmp_path / "c", Mapping(tp_size=2), quantization=rows)
    whole = WholeTensors(checkpoint)
    spec = whole.specs["transformer.layers.0.mlp.proj.per_channel_scale"]
    with pytest.raises(CheckpointError, match="rank1.*per_channel_scale: not as in the first rank"):
        whole.read(spec)
