"""GPUs by name: compute capability and memory, for recipes that name theirs.

What no source says is None: such a GPU's memory is not held against the model, unless a recipe
states it (`target.gpu_memory_gib`).
Source: developer.nvidia.com/cuda-gpus (compute capabilities); NVIDIA's MIG user guide, supported
GPUs (A100, B200) and NIM for LLMs, supported models (L40S, H100, H200, RTX 4090 and 5090) for the
memory. Both count in GB; nvidia-smi shows a little less in GiB, of an L40S 45.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; `memory_gib` is the most there can be, of which a little is never free."""

    capability: int
    memory_gib: float | None


GPUS: dict[str, Gpu] = {
    "A10": Gpu(capability=86, memory_gib=None),
    "A100-40GB": Gpu(capability=80, memory_gib=40),
    "A100-80GB": Gpu(capability=80, memory_gib=80),
    "L4": Gpu(capability=89, memory_gib=None),
    "L40S": Gpu(capability=89, memory_gib=48),
    "RTX-4090": Gpu(capability=89, memory_gib=24),
    "H100-80GB": Gpu(capability=90, memory_gib=80),
    "H200": Gpu(capability=90, memory_gib=141),
    "B200": Gpu(capability=100, memory_gib=180),
    "RTX-5090": Gpu(capability=120, memory_gib=32),
}
"""Name → what it is."""
