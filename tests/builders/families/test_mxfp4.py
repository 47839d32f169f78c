"""gpt-oss as it is released: MXFP4 experts become the plain weights transformers makes of them."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from llmc.builders import reading
from llmc.builders.hf.preflight import examine
from llmc.checkpoint import Checkpoint
from llmc.errors import CheckpointError
from llmc.mapping import Mapping
from llmc.quant import mxfp4
from tests.builders.families.test_experts import checkpoint_of
from tests.builders.families.tiny_families import write_case
from tests.goldens.golden import write_safetensors

Tensors = dict[str, npt.NDArray[Any]]
SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
RELEASED = {
    "experts_per_token": 2,
    "initial_context_length": 16,
    "rope_theta": 100,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 16,
    },
}
"""Settings as in openai/gpt-oss-20b's config.json, beside those that transformers writes."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with random MXFP4 experts, and the plain bfloat16 model transformers makes of it."""
    plain, model = write_case(tmp_path_factory.mktemp("gpt_oss"), "gpt_oss")
    packed = tmp_path_factory.mktemp("packed")
    held: Tensors = {
        name: tensor.numpy().astype(ml_dtypes.bfloat16)
        for name, tensor in model.state_dict().items()
    }
    config = json.loads((plain / "config.json").read_text()) | {"dtype": None}
    stored, draw = dict(held), np.random.default_rng(0)
    for name in [name for name in held if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, num_in, num_out = held[name].shape
        codes = draw.integers(0, 256, (experts, num_out, num_in // 32, 16), np.uint8)
        scales = draw.integers(117, 124, codes.shape[:-1], np.uint8)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = codes, scales
        del stored[name]
        made = convert_moe_packed_tensors(torch.from_numpy(codes), torch.from_numpy(scales))
        held[name] = made.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    write(plain, config, held)
    config.pop("rope_parameters")
    write(packed, config | RELEASED | {"quantization_config": SETTINGS}, stored)
    return packed, plain


def write(directory: Path, config: dict[str, Any], tensors: Tensors) -> None:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").unlink(missing_ok=True)
    write_safetensors(directory / "model.safetensors", tensors)


def assert_equal(one: Checkpoint, other: Checkpoint, num_ranks: int) -> None:
    for rank in range(num_ranks):
        assert one.rank(rank).infos.keys() == other.rank(rank).infos.keys()
        for name in one.rank(rank).infos:
            found = one.rank(rank).read(name)
            np.testing.assert_array_equal(found, other.rank(rank).read(name), name)


@pytest.mark.parametrize(
    "mapping", [Mapping(), Mapping(tp_size=2), Mapping(tp_size=4, moe_tp_size=2, moe_ep_size=2)]
)
def test_mxfp4_becomes_what_transformers_makes_of_it(
    both: tuple[Path, Path], mapping: Mapping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, plain = both
    whole = checkpoint_of(plain, tmp_path / "plain", mapping)
    # In many pieces, none of them a whole matrix.
    monkeypatch.setattr(reading, "_PIECE_BYTES", 3000)
    pieces = checkpoint_of(packed, tmp_path / "packed", mapping)
    assert pieces.config.dtype == "bfloat16" and pieces.config.arch == whole.config.arch
    assert_equal(pieces, whole, mapping.world_size)


def test_every_code_and_scale() -> None:
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), (253, 16, 16))
    scales = np.repeat(np.arange(253, dtype=np.uint8)[:, None], 16, axis=1)
    found = mxfp4.decode(codes, scales)
    made = convert_moe_packed_tensors(
        torch.from_numpy(codes.copy())[None], torch.from_numpy(scales)[None], dtype=torch.float32
    )
    np.testing.assert_array_equal(found, made[0].T.numpy())
    np.testing.assert_array_equal(found.astype(ml_dtypes.bfloat16).astype(np.float32), found)
    assert np.isnan(mxfp4.decode(codes[:1], np.full((1, 16), 255, np.uint8))).all()


def damaged(both: tuple[Path, Path], output: Path, name: str, value: Any) -> Path:
    """Write the packed model with tensor `name` replaced; None: left out."""
    model, reasons = examine(both[0])
    assert model is not None and reasons == []
    tensors = {key: model.weights.read(key) for key in model.weights.infos}
    model.weights.close()
    tensors[name] = value
    if value is None:
        del tensors[name]
    output.mkdir()
    write(output, json.loads((both[0] / "config.json").read_text()), tensors)
    return output


SCALES = "model.layers.1.mlp.experts.down_proj_scales"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        (np.zeros((4, 64, 2), np.uint8), "shape (4, 64, 2), expected (4, 64, 3)"),
        (np.zeros((4, 64, 3), np.float32), "dtype float32, expected one of uint8"),
    ],
)
def test_scales_that_do_not_fit_are_named(
    both: tuple[Path, Path], value: Any, reason: str, tmp_path: Path
) -> None:
    model, reasons = examine(damaged(both, tmp_path / "model", SCALES, value))
    assert model is not None
    model.weights.close()
    (line,) = reasons
    assert f"{SCALES}: {reason}" in line


def test_a_scale_that_is_no_number_is_named(both: tuple[Path, Path], tmp_path: Path) -> None:
    scales = np.full((4, 64, 3), 120, np.uint8)
    scales[2, 5, 1] = 255
    directory = damaged(both, tmp_path / "model", SCALES, scales)
    wanted = r"down_proj_blocks: nan at \[2, 5, 32\], expected a finite number"
    with pytest.raises(CheckpointError, match=wanted):
        checkpoint_of(directory, tmp_path / "out", Mapping())


def test_a_family_without_such_weights_says_so(tmp_path: Path) -> None:
    directory, _ = write_case(tmp_path / "model", "llama")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": SETTINGS}))
    model, (reason,) = examine(directory)
    assert model is not None
    model.weights.close()
    assert "quant_method: 'mxfp4', expected one of compressed-tensors" in reason
