"""`llmc targets`: what each target is made of, and which quantizations it has on which GPUs."""

from typing import Annotated, Any

import typer


def targets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what each target is made of, and which quantizations it has.

    TensorRT-LLM by version, with the containers that build and serve; what no source says is
    unknown.

    Examples:

    llmc targets

    llmc targets --json
    """
    from llmc.cli.render import print_json, print_section

    found = describe()
    if as_json:
        print_json(found)
        return
    for title, rows in found.items():
        shown = {name: "unknown" if value is None else value for name, value in rows.items()}
        print_section(title, shown)


def describe() -> dict[str, dict[str, Any]]:
    """Return the table as plain data: title → fact → value, None where it is unknown."""
    from llmc.builders.targets import tensorrt_capabilities as rtx
    from llmc.quant import FORMATS

    found: dict[str, dict[str, Any]] = {
        "cpu": {"runs on": "x86-64", "quantizations": [*FORMATS], "KV cache": ["INT8", "FP8"]}
    }
    caches = {"INT8": rtx.INT8_KV_CACHE, "FP8": rtx.FP8_KV_CACHE}
    for group in rtx.CLASSES:
        gpus = " and ".join(map(str, group))
        found[f"tensorrt-rtx {gpus}"] = {
            "runs on": f"compute capability {gpus}",
            "quantizations": [name for name in FORMATS if group[0] in rtx.rtx_gpus_with(name)],
            "KV cache": [
                name for name, key in caches.items() if group[0] in rtx.rtx_gpus_with(key)
            ],
        }
    for gpu in rtx.GPUS:
        found[f"tensorrt {gpu}"] = {
            "runs on": f"compute capability {gpu}, and is built on it",
            "quantizations": [name for name in FORMATS if gpu in rtx.gpus_with(name)],
            "KV cache": [name for name, key in caches.items() if gpu in rtx.gpus_with(key)],
        }
    return found | _tensorrt_llm()


def _tensorrt_llm() -> dict[str, dict[str, Any]]:
    from llmc.builders.targets.tensorrt_llm.quantizations import KV_CACHE, WEIGHTS
    from llmc.tensorrt_llm_versions import VERSIONS

    found = {}
    for line, version in VERSIONS.items():
        title = f"tensorrt-llm {line}{'' if version.has_engines else ' and later'}"
        found[title] = {
            "release": version.release,
            "reads": "checkpoints" if version.has_engines else "Hugging Face checkpoints",
            "container": version.container,
            "Triton's container": version.triton_container,
            "python": version.python,
            "cuda": version.cuda,
            "tensorrt": version.tensorrt,
            "torch": version.torch,
            "driver": version.driver,
            "Triton's models": [*version.repository],
            "quantizations": [
                f"{name} ({one.where()})" for name, one in WEIGHTS.items() if line in one.lines
            ],
            "KV cache": [
                f"{name} ({one.where()})" for name, one in KV_CACHE.items() if line in one.lines
            ],
        }
    return found
