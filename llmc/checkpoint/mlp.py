"""The tensors of a layer's MLP that are no linear module: what routes tokens to experts.

Source: NVIDIA/TensorRT-LLM 0.17 tensorrt_llm/layers/moe.py (MOE, SharedMoE) and models/deepseek_v2/
convert.py: what routes is float32 whatever the model's dtype. It knows no biases of router and
experts; their names follow the others'.
"""

from collections.abc import Iterator

from llmc.arch import ModelArch
from llmc.checkpoint.split import TensorSpec


def routing_specs(arch: ModelArch, layer: int) -> Iterator[TensorSpec]:
    """Yield what every rank holds to route the tokens of `layer`; nothing where no expert is."""
    moe, module = arch.moe, f"transformer.layers.{layer}.mlp"
    if moe is None or not arch.has_experts(layer):
        return
    count = moe.num_experts
    shapes: dict[str, tuple[int, ...]] = {"router.weight": (count, arch.hidden_size)}
    if moe.router_bias:
        shapes["router.bias"] = (count,)
    if moe.score_correction_bias:
        shapes["e_score_correction_bias"] = (count,)
    for name, shape in shapes.items():
        yield TensorSpec(name=f"{module}.{name}", shape=shape, layer=layer, dtype="float32")
    if moe.shared_expert_gate:
        shape = (1, arch.hidden_size)
        yield TensorSpec(name=f"{module}.shared_expert_gate.weight", shape=shape, layer=layer)
