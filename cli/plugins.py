"""`llmc plugins`: each fused op on each target, its quantizations and the options of a recipe."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from llmc.builders.plugin_support import OpSupport
    from llmc.plugins.tensorrt_llm_options import Option


def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what each target does with each fused op.

    In which quantizations it runs, on GPUs of which compute capability, and what `build.plugins` of
    a recipe may choose. Asked of the code itself.

    Examples:

    llmc plugins

    llmc plugins --json
    """
    from llmc.builders.plugin_support import plugin_support
    from llmc.cli.render import print_json, print_section

    found = plugin_support()
    if as_json:
        print_json([_as_data(one) for one in found])
        return
    for op in dict.fromkeys(one.op for one in found):
        rows = {one.target: _line(one) for one in found if one.op == op}
        options = {name: option for one in found if one.op == op for name, option in _chosen(one)}
        if options:
            rows["build.plugins"] = ", ".join(
                f"{name} ({option.where()})" if option.where() else name
                for name, option in options.items()
            )
        print_section(op, rows)


def _chosen(one: "OpSupport") -> list[tuple[str, "Option"]]:
    """Return the options that a recipe may set: the builder sets the others."""
    return [(name, option) for name, option in one.options.items() if option.flag]


def _as_data(one: "OpSupport") -> dict[str, Any]:
    return {
        "op": one.op,
        "target": one.target,
        "lowered": one.lowered,
        "quantizations": one.quantizations,
        "options": {name: _option_data(option) for name, option in one.options.items()},
    }


def _option_data(option: "Option") -> dict[str, Any]:
    return {
        "default": option.default,
        "values": [*option.values] or [True, False],
        "chosen_by_builder": not option.flag,
        "needs": {str(value): [*algos] for value, algos in option.needs.items()},
        "compute_capability": option.where(),
    }


def _line(one: "OpSupport") -> str:
    if one.lowered is False:
        return "no"
    parts = [] if one.lowered is None else ["yes"]
    parts += [f"{name} ({where})" if where else name for name, where in one.quantizations.items()]
    return ", ".join(parts) or "in TensorRT-LLM's own network"
