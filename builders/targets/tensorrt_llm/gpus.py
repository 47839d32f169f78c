"""GPUs by name: compute capability and memory, for recipes that name theirs.

Memory is what the products are known by; it was not read off data sheets, and a recipe may state
its own (`target.gpu_memory_gib`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; `memory_gib` is what its name says, of which a little is never free."""

    capability: int
    memory_gib: float


GPUS: dict[str, Gpu] = {
    "A10": Gpu(capability=86, memory_gib=24),
    "A100-40GB": Gpu(capability=80, memory_gib=40),
    "A100-80GB": Gpu(capability=80, memory_gib=80),
    "L4": Gpu(capability=89, memory_gib=24),
    "L40S": Gpu(capability=89, memory_gib=48),
    "RTX-4090": Gpu(capability=89, memory_gib=24),
    "H100-80GB": Gpu(capability=90, memory_gib=80),
    "H200": Gpu(capability=90, memory_gib=141),
    "B200": Gpu(capability=100, memory_gib=180),
    "RTX-5090": Gpu(capability=120, memory_gib=32),
}
"""Name → what it is."""
