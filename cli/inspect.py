"""`llmc inspect`: what a directory holds, from headers and manifests; weights are only digested."""

from pathlib import Path
from typing import Annotated, Any

import typer

PARTS = ("checkpoint", "engine", "model_repo")


def inspect(
    artifact: Annotated[
        Path,
        typer.Argument(
            metavar="ARTIFACT",
            help="A Hugging Face directory, or anything `llmc build` wrote.",
        ),
    ],
    verify: Annotated[
        bool, typer.Option(help="Read every file and compare it with the manifest.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what an artifact holds: mapping, quantization, sizes, digests.

    Fails with exit code 3 when files differ from the manifest.

    Examples:

    llmc inspect out

    llmc inspect out/engine --json

    llmc inspect ./smollm2 --no-verify
    """
    from llmc.cli.render import print_json, print_section
    from llmc.errors import CheckpointError

    parts = [artifact / name for name in PARTS if (artifact / name).is_dir()] or [artifact]
    described = [describe(part, verify=verify) for part in parts]
    if as_json:
        print_json(described[0] if parts == [artifact] else {"artifacts": described})
    else:
        for part in described:
            files = part.pop("files")
            print_section(f"{part.pop('kind')}  {part.pop('path')}", _flat(part))
            print_section("files", [(f["name"], _file_line(f)) for f in files])
    damage = [line for part in described for line in part.get("damage", ())]
    if damage:
        raise CheckpointError("\n".join(damage), hint="build it again: `llmc build` replaces it")


def describe(directory: Path, *, verify: bool) -> dict[str, Any]:
    """Return what is known of `directory` as plain data: kind, path, facts, files and any damage.

    Raises: CheckpointError when it is none of the kinds or its config cannot be read.
    """
    from llmc import artifacts

    kind, facts = _recognize(directory)
    described: dict[str, Any] = {"kind": kind, "path": str(directory), **facts}
    manifest = None
    if (directory / artifacts.MANIFEST_NAME).is_file():
        manifest = artifacts.read_manifest(directory)
        described["manifest"] = manifest.model_dump(exclude={"files", "schema_version", "stage"})
        if verify:
            described["damage"] = [
                f"{directory}/{d}" for d in artifacts.verify(directory, manifest)
            ]
    known = manifest.files if manifest is not None else {}
    files = [
        {
            "name": name,
            "size_bytes": path.stat().st_size,
            "sha256": known[name].sha256 if name in known else None,
        }
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (name := path.relative_to(directory).as_posix()) != "manifest.json"
    ]
    described["size_bytes"] = sum(int(str(file["size_bytes"])) for file in files)
    return described | {"files": files}


def _recognize(directory: Path) -> tuple[str, dict[str, Any]]:
    from llmc.builders.hf.config import read_json
    from llmc.errors import CheckpointError

    if sorted(directory.glob("*/config.pbtxt")):
        return "model repository", _repository_facts(directory)
    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"{directory}: no config.json and no model's config.pbtxt",
            hint="inspect takes a Hugging Face directory or what `llmc build` wrote",
        )
    path = directory / "config.json"
    config = read_json(path)
    if "pretrained_config" in config:
        return "engine", _engine_facts(path, config)
    if "architecture" in config:
        return "checkpoint", _checkpoint_facts(path, config) | _tensor_facts(directory, "rank*")
    facts = _hf_facts(config)
    if (directory / "hf_quant_config.json").is_file():
        facts["quantization"] = read_json(directory / "hf_quant_config.json").get("quantization")
    return "Hugging Face checkpoint", facts | _tensor_facts(directory, "*")


def _checkpoint_facts(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    from llmc.checkpoint import CheckpointConfig
    from llmc.errors import CheckpointError

    try:
        parsed = CheckpointConfig.from_json(config)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error.message}", error.hint) from error
    arch = parsed.arch
    return {
        "architecture": arch.architecture,
        "dtype": parsed.dtype,
        "layers": arch.num_hidden_layers,
        "hidden_size": arch.hidden_size,
        "attention_heads": arch.num_attention_heads,
        "key_value_heads": arch.num_key_value_heads,
        "vocab_size": arch.vocab_size,
        "mapping": parsed.mapping.to_json(),
        "quantization": parsed.quantization.to_json(),
    }


def _engine_facts(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    own = config.get("llmc", {})
    build = config.get("build_config", {})
    limits = {name: value for name, value in build.items() if name.startswith("max_")}
    return {
        "target": own.get("target"),
        **_checkpoint_facts(path, config["pretrained_config"]),
        "limits": limits,
        "tokens_per_block": build.get("plugin_config", {}).get("tokens_per_block"),
        **_plan_facts(own),
    }


def _plan_facts(own: dict[str, Any]) -> dict[str, Any]:
    """Return what was read in the plans of an engine that has plans."""
    if "plans" not in own:
        return {}
    return {
        "weights": own.get("weights"),
        "weight_inputs": [one["name"] for one in own["bindings"] if one.get("is_weight")],
        "tensorrt": own.get("tensorrt_version"),
        "plans": {
            plan["file"]: {key: value for key, value in plan.items() if key != "file"}
            for plan in own["plans"]
        },
    }


def _hf_facts(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "architecture": (config.get("architectures") or [None])[0],
        "dtype": config.get("dtype", config.get("torch_dtype")),
        "layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "attention_heads": config.get("num_attention_heads"),
        "key_value_heads": config.get("num_key_value_heads"),
        "vocab_size": config.get("vocab_size"),
        "quantization": config.get("quantization_config"),
    }


def _tensor_facts(directory: Path, pattern: str) -> dict[str, Any]:
    """Count tensors and sum sizes by element type, from the headers of the safetensors files."""
    from llmc.weights import SafetensorsFile

    num_tensors = 0
    sizes: dict[str, int] = {}
    for path in sorted(directory.glob(f"{pattern}.safetensors")):
        for info in SafetensorsFile.open(path).infos.values():
            num_tensors += 1
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.num_bytes
    return {"tensors": num_tensors, "tensor_bytes": sizes}


def _repository_facts(directory: Path) -> dict[str, Any]:
    from llmc.model_repo.pbtxt import read_config

    models = {}
    for path in sorted(directory.glob("*/config.pbtxt")):
        config = read_config(path)
        models[path.parent.name] = {
            "backend": config.backend or config.platform,
            "max_batch_size": config.max_batch_size,
            "decoupled": config.model_transaction_policy.decoupled,
            "instances": sum(group.count for group in config.instance_group),
        }
    return {"models": models}


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Turn nested facts into rows with dotted names; what is absent makes no row."""
    rows: list[tuple[str, object]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            rows.append((f"{prefix}{name}", _readable(name, prefix, value)))
    return rows


def _readable(name: str, prefix: str, value: object) -> object:
    from llmc.cli.render import format_bytes

    if isinstance(value, int) and (name == "size_bytes" or prefix.endswith("tensor_bytes.")):
        return format_bytes(value)
    return value


def _file_line(file: dict[str, Any]) -> str:
    from llmc.cli.render import format_bytes

    digest = f"  sha256 {file['sha256'][:16]}…" if file["sha256"] else ""
    return f"{format_bytes(file['size_bytes']):>10}{digest}"
