"""What `llmc build`'s flags become, by target."""

from pathlib import Path
from typing import Any

import pytest

from llmc.cli.build import FLAGS, read_source
from llmc.errors import RecipeError
from llmc.recipes.schema import Recipe


def read(model: Path, target: str | None, *capabilities: int, settings: str = "") -> Recipe:
    given: dict[str, Any] = dict.fromkeys(FLAGS)
    given |= {"--target": target, "--compute-capability": [*capabilities] or None}
    return read_source(str(model), settings.split(), given)


def test_compute_capability_is_the_targets(tmp_path: Path) -> None:
    rtx = read(tmp_path, "tensorrt-rtx", 89, 120).target
    assert rtx.kind == "tensorrt-rtx" and rtx.compute_capabilities == (89, 120)
    llm = read(tmp_path, "tensorrt-llm", 89).target
    assert llm.kind == "tensorrt-llm" and llm.compute_capability == 89
    # The target may come from elsewhere.
    other = read(tmp_path, None, 80, settings="target.kind=tensorrt-llm").target
    assert other.kind == "tensorrt-llm" and other.compute_capability == 80
    none = read(tmp_path, "tensorrt-llm").target
    assert none.kind == "tensorrt-llm" and none.compute_capability is None


@pytest.mark.parametrize(
    ("target", "capabilities", "message"),
    [
        ("tensorrt-llm", (89, 90), "--compute-capability 89 90: an engine of tensorrt-llm is for"),
        ("cpu", (89,), "--compute-capability 89: the target cpu is for no GPU"),
        ("tensorrt-rtx", (90,), "--compute-capability.*expected 75, 80"),
        ("tensorrt-llm", (0,), "--compute-capability 0: target.compute_capability: 0, expected"),
    ],
)
def test_what_no_target_has_is_one_error(
    tmp_path: Path, target: str, capabilities: tuple[int, ...], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        read(tmp_path, target, *capabilities)
