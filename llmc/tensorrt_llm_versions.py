"""The supported lines of TensorRT-LLM: what each is made of, and what it reads and writes.

None is what no source says, shown as "unknown".
Source: the compatibility matrix of Triton's trtllm-python-py3 containers (0.21 to 1.1);
triton-inference-server/tensorrtllm_backend dockerfile/Dockerfile.triton.trt_llm_backend and the
requirements of the wheel (1.2), its container after triton-inference-server/server issues 8805 and
8945; tags of the release containers as public scripts use them, those
of 1.1.0 and 1.2.1 by few; NVIDIA/TensorRT-LLM release notes and pull requests 15907, 15918 and
16369, which removed engines (1.3).
"""

import importlib.metadata
from dataclasses import dataclass
from typing import Literal

Dialect = Literal["engine", "pytorch"]
"""engine: checkpoint → trtllm-build → engine; pytorch: a Hugging Face checkpoint is served."""

ENGINE_REPOSITORY = (
    "ensemble",
    "preprocessing",
    "postprocessing",
    "tensorrt_llm",
    "tensorrt_llm_bls",
)
"""Models of the inflight_batcher_llm repository."""

ENGINE_CONFIG_KEYS = ("version", "pretrained_config", "build_config")
"""config.json of an engine; beside it rank<N>.engine, and with managed weights
rank<N>_managed_weights.safetensors. Source: tensorrt_llm/builder.py (EngineConfig.to_dict)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One line. `container` builds engines, `triton_container` serves them."""

    line: str
    release: str
    dialect: Dialect
    container: str
    triton_container: str | None
    python: str | None
    cuda: str | None
    tensorrt: str | None
    torch: str | None
    driver: str | None
    repository: tuple[str, ...]

    @property
    def has_engines(self) -> bool:
        """Say whether the line has trtllm-build."""
        return self.dialect == "engine"


_IMAGE = "nvcr.io/nvidia/tensorrt-llm/release"
_TRITON = "nvcr.io/nvidia/tritonserver"

VERSIONS: dict[str, Version] = {
    "0.21": Version(
        line="0.21",
        release="0.21.0",
        dialect="engine",
        container=f"{_IMAGE}:0.21.0",
        triton_container=f"{_TRITON}:25.08-trtllm-python-py3",
        python="3.12.3",
        cuda="12.9.0",
        tensorrt="10.11.0.33",
        torch="2.8.0a0+5228986c39.nv25.5",
        driver="575.51.03",
        repository=ENGINE_REPOSITORY,
    ),
    "1.0": Version(
        line="1.0",
        release="1.0.0",
        dialect="engine",
        container=f"{_IMAGE}:1.0.0",
        triton_container=f"{_TRITON}:25.10-trtllm-python-py3",
        python="3.12.3",
        cuda="12.9.1",
        tensorrt="10.11.0.33",
        torch="2.8.0a0+5228986c39.nv25.6",
        driver="575.57.08",
        repository=ENGINE_REPOSITORY,
    ),
    "1.1": Version(
        line="1.1",
        release="1.1.0",
        dialect="engine",
        container=f"{_IMAGE}:1.1.0",
        triton_container=f"{_TRITON}:25.12-trtllm-python-py3",
        python="3.12.3",
        cuda="13.0.2",
        tensorrt="10.13.3.9",
        torch="2.9.0a0+145a3a7bda.nv25.10",
        driver="580.95.05",
        repository=ENGINE_REPOSITORY,
    ),
    "1.2": Version(
        line="1.2",
        release="1.2.1",
        dialect="engine",
        container=f"{_IMAGE}:1.2.1",
        triton_container=f"{_TRITON}:26.07-trtllm-python-py3",
        python=">=3.10,<4",
        cuda="13.0",
        tensorrt="10.14.1.48",
        torch="2.10.0a0+b4e4ee81d3.nv25.12",
        driver=None,
        repository=ENGINE_REPOSITORY,
    ),
    "1.3": Version(
        line="1.3",
        release="1.3.0rc14",
        dialect="pytorch",
        container=f"{_IMAGE}:1.3.0rc14",
        triton_container=None,
        python=None,
        cuda=None,
        tensorrt="none: engines were removed",
        torch=None,
        driver=None,
        repository=("tensorrt_llm",),
    ),
}
"""Line → what it is; 1.3 stands for every later one."""


TRITON_RELEASES: dict[str, str] = {
    "25.08": "0.21.0",
    "25.09": "1.0.0",
    "25.10": "1.0.0",
    "25.11": "1.0.3.2510",
    "25.12": "1.1.0",
    "26.05": "1.2.1",
    "26.07": "1.2.1",
}
"""Release of Triton → TensorRT-LLM in its trtllm-python-py3 container, as the matrix has them; of
2026 as users name them."""


def lines_with(wanted: tuple[str, ...]) -> str:
    """Return the lines of `wanted` as text, in order."""
    return ", ".join(line for line in VERSIONS if line in wanted) or "none"


def line_of(version: str) -> str:
    """Return the line of a version, known or not: 1.2.1 and 1.2.0rc6.post3 are 1.2."""
    return ".".join(version.split(".")[:2])


def installed_version() -> str | None:
    """Return the version of TensorRT-LLM that this Python has; it is not imported."""
    try:
        return importlib.metadata.version("tensorrt-llm")
    except importlib.metadata.PackageNotFoundError:
        return None
