"""What a plan must show that it does, from its network; and what it does show."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmc.builders.targets.tensorrt_plan import NARROW, NotReadableError, Plan, Program, read_plan
from llmc.plugins import graph
from llmc.plugins.attention.tensorrt import is_fp8, is_fused
from llmc.plugins.graph import Network, OpCall
from llmc.plugins.moe.tensorrt import num_second_products, runs
from llmc.quant.format import load_format

WEIGHTS: dict[tuple[str, int], str] = {
    ("integer", 8): "int8",
    ("integer", 4): "int4",
    ("float", 8): "fp8_e4m3",
    ("float", 4): "fp4_e2m1",
}
"""(kind of number, bits) → the type a GEMM must read."""

_PLAIN = "none"
_FLOATS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4")


@dataclass(slots=True, kw_only=True)
class Expected:
    """`gemms`: label → least number of products. `max_wide_gemms`: most products of 16-bit numbers
    beside them; a product of several modules may have been cut at their borders. `products`: least
    number of all; those of one input may have become one."""

    attentions: int = 0
    fp8_attentions: int = 0
    collectives: int = 0
    gemms: Counter[str] = field(default_factory=Counter)
    max_wide_gemms: int = 0
    products: int = 0


def expected_of(network: Network, dtype: str, *, embeds: bool) -> Expected:
    """Return what each program of the network's plan, with its weights or without, has to show."""
    found = Expected()
    # Products of one input and one kind of weight may have become one.
    firsts: set[tuple[str, str]] = set()
    for call in network.ops:
        quant = str(call.attrs.get("quant", "none"))
        if call.plugin == "attention":
            fused = is_fused(call, dtype)
            found.attentions += fused
            found.fp8_attentions += is_fp8(call, dtype, embeds=embeds)
            found.max_wide_gemms += 0 if fused else 2
        elif call.plugin == "linear":
            firsts.add((quant, call.inputs[0]))
            _expect_linear(found, call, quant)
        elif call.plugin == "moe":
            firsts.add((quant, call.inputs[0]))
            _expect_experts(found, call, quant, dtype)
        found.collectives += graph.spec(call.plugin).communicates
    found.gemms.update(_label_of(quant, dtype) for quant, _ in firsts if quant != _PLAIN)
    # The head, of one row, is no product where the vocabulary is small.
    found.products += len({value for _, value in firsts}) - len(network.outputs)
    return found


def _expect_linear(found: Expected, call: OpCall, quant: str) -> None:
    # q, k and v are one tensor; the builder may still cut it where the network slices the product.
    parts = 3 if call.name.endswith(".qkv") else len(call.weights["weight"])
    if quant == _PLAIN or load_format(quant).config.get("has_zero_point"):
        found.max_wide_gemms += parts


def _expect_experts(found: Expected, call: OpCall, quant: str, dtype: str) -> None:
    num_runs, num_seconds = len(runs(call)), num_second_products(call)
    found.products += num_seconds
    if "proj_bias" in call.weights:
        found.max_wide_gemms += num_runs
    if quant == _PLAIN:
        # A first product may have been cut between its halves.
        found.max_wide_gemms += 2 * num_runs + num_seconds
    else:
        found.gemms[_label_of(quant, dtype)] += num_seconds


def _label_of(quant: str, dtype: str) -> str:
    """Return what a product of a quantization multiplies, as tensorrt_plan tells it."""
    form = load_format(quant)
    narrow = WEIGHTS["float" if quant in _FLOATS else "integer", form.weight_bits]
    wide = {"float16": "half", "bfloat16": "bf16"}[dtype]
    return f"{wide if form.activation == 'none' else narrow} x {narrow}"


def gather(
    path: Path, expected: Expected, profiles: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """Return what is in the plan as plain data, and what speaks against it, a line each.

    A plan that is not readable proves nothing and fails nothing: the data says so.
    """
    try:
        plan = read_plan(path)
    except NotReadableError as error:
        return {"not_readable": str(error)}, []
    names = profiles if len(plan.programs) == len(profiles) else ()
    programs: dict[str, Any] = {}
    problems = []
    for place, program in enumerate(plan.programs):
        name = names[place] if names else f"program {place}"
        programs[name] = _describe(program)
        problems += [f"{name}: {line}" for line in contradictions(program, expected)]
    if not names:
        problems.append(f"{len(plan.programs)} programs, expected {len(profiles)}")
    return _facts(plan) | {"programs": programs}, problems


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "version": ".".join(map(str, plan.version)),
        "engine_bytes": plan.engine_bytes,
        "weights_bytes": plan.weights_bytes,
        "accelerators": sorted({one for item in plan.programs for one in item.accelerators}),
    }


def _describe(program: Program) -> dict[str, Any]:
    return {
        "launches": len(program.launches),
        "attention": dict(program.count("attention")),
        "fp8_attention": program.fp8_attentions,
        "gemms": dict(program.count("gemm")),
        "collectives": dict(program.count("collective")),
        "dequantizes": dict(Counter(program.dequantizes)),
    }


def contradictions(program: Program, expected: Expected) -> list[str]:
    """Return where a program does not do what it was built for."""
    found = []
    attentions = program.count("attention").total()
    # The builder may fuse one that was composed of small layers, too.
    if attentions < expected.attentions:
        found.append(f"{attentions} fused attention kernels, expected {expected.attentions}")
    if program.fp8_attentions < expected.fp8_attentions:
        found.append(
            f"{program.fp8_attentions} attention kernels in FP8, expected {expected.fp8_attentions}"
        )
    collectives = program.count("collective").total()
    if collectives != expected.collectives:
        found.append(f"{collectives} collectives, expected {expected.collectives}")
    gemms = program.count("gemm")
    if gemms.total() < expected.products:
        found.append(f"{gemms.total()} products, expected at least {expected.products}")
    for label, least in expected.gemms.items():
        if gemms[label] < least:
            found.append(f"{gemms[label]} products of {label}, expected at least {least}")
    if expected.gemms:
        wide = sum(count for label, count in gemms.items() if not _is_narrow(label))
        if wide > expected.max_wide_gemms:
            found.append(
                f"{wide} products of 16-bit numbers, expected at most {expected.max_wide_gemms}"
            )
    for kernel in sorted(set(program.dequantizes)):
        found.append(f"kernel {kernel} dequantizes outside of a product")
    return found


def _is_narrow(label: str) -> bool:
    return label.split(" x ")[1] in NARROW
