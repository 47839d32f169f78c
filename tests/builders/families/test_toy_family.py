"""A family made of public names alone: the one that docs/architecture.md walks through."""

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from llmc.builders.convert import convert
from llmc.builders.families import FAMILIES
from llmc.builders.network import build_network
from llmc.checkpoint import Checkpoint, Quantization
from llmc.log import NullProgress
from llmc.mapping import Mapping
from tests.builders.hf_models import Tensors, tiny_config, tiny_tensors, write_tiny

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
NAMES = {
    "model.embed_tokens": "lyra.words",
    "model.norm": "lyra.norm",
    "model.layers": "lyra.blocks",
    "lm_head": "head",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "out",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


@pytest.fixture
def lyra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the page's module as a family."""
    section = PAGE.read_text(encoding="utf-8").split("### A family\n", 1)[1].split("\n### ", 1)[0]
    assert section.count("\n") < 80
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module = ModuleType("llmc.builders.families.lyra")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(FAMILIES, "LyraForCausalLM", "lyra")


def as_lyra(tensors: Tensors) -> Tensors:
    """Return a llama's tensors as Lyra stores them."""
    made: Tensors = {}
    for name, values in tensors.items():
        for llama, lyra in NAMES.items():
            name = name.replace(llama, lyra)
        made[name] = values.T.copy() if name.endswith("out.weight") else values
        if "norm" in name:
            made[name] = values - np.float32(1)
    return made


def converted(model_dir: Path, output_dir: Path) -> Checkpoint:
    output_dir.mkdir()
    convert(
        model_dir,
        output_dir,
        dtype=None,
        mapping=Mapping(tp_size=2),
        quantization=Quantization(),
        progress=NullProgress(),
        workers=1,
    )
    return Checkpoint.open(output_dir)


def test_lyra_is_llama_again(lyra: None, tmp_path: Path) -> None:
    config = tiny_config(attention_bias=False, mlp_bias=False)
    tensors = tiny_tensors(config)
    names = {"hidden_size": "width", "num_hidden_layers": "depth", "rms_norm_eps": "norm_eps"}
    theirs = {names.get(key, key): value for key, value in config.items()}
    theirs |= {"architectures": ["LyraForCausalLM"], "model_type": "lyra"}
    llama = converted(write_tiny(tmp_path / "llama", config, tensors), tmp_path / "1")
    lyra_dir = write_tiny(tmp_path / "lyra", theirs, as_lyra(tensors))
    found = converted(lyra_dir, tmp_path / "2")
    for rank in range(2):
        assert found.rank(rank).infos == llama.rank(rank).infos
        for name in llama.rank(rank).infos:
            np.testing.assert_allclose(
                found.rank(rank).read(name), llama.rank(rank).read(name), atol=1e-7, err_msg=name
            )
        assert build_network(found.config, rank) == build_network(llama.config, rank)
