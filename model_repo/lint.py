"""Find the mistakes in a model repository that Triton would only meet while loading or serving it.

Every config.pbtxt is parsed and every finding is collected, each with file and field. Works on any
repository, also one edited by hand or written by someone else. Parameters, engines and ensembles
have modules of their own; here are the models and what they share.

Source: triton-inference-server/core src/model_config_utils.cc, ValidateModelConfig, for what Triton
itself would refuse.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from llmc.errors import BuildError
from llmc.model_repo.engine_config import Engine
from llmc.model_repo.lint_backend import check_backend
from llmc.model_repo.lint_engine import check_engine, find_engine
from llmc.model_repo.lint_ensemble import check_ensemble
from llmc.model_repo.lint_llmapi import SETTINGS_FILE, check_llmapi
from llmc.model_repo.lint_parameters import check_parameters, check_paths, kind_of, values_of
from llmc.model_repo.lint_warmup import check_warmup
from llmc.model_repo.pbtxt import CONFIG_FILE, read_config

Client = Literal["stream", "generate"]
"""How a client asks: for a response per token, or by HTTP /generate and gRPC infer for one."""

_PLACEHOLDER = re.compile(r"\$\{\w*\}?")
_MODEL_NAMES = (
    "tensorrt_llm_model_name",
    "tensorrt_llm_draft_model_name",
    "multimodal_encoders_name",
)
"""Parameters that name another model of the repository."""


def lint_repository(
    repository: Path, *, elsewhere: bool = False, engine: Engine | None = None
) -> None:
    """Check every model of `repository`.

    `engine`: the one it is for, which may be stored under the name another machine has for it.
    Raises: BuildError that lists all findings, one `file: field: what is wrong` each.
    """
    findings = find_mistakes(repository, elsewhere=elsewhere, engine=engine)
    if findings:
        lines = [f"{repository}: not servable", *(f"  - {finding}" for finding in findings)]
        raise BuildError("\n".join(lines))


def find_mistakes(
    repository: Path,
    *,
    elsewhere: bool = False,
    client: Client | None = None,
    engine: Engine | None = None,
) -> list[str]:
    """Return every mistake, one line each.

    `elsewhere`: the repository is served on another machine, so absolute paths are not looked at.
    `client` None: nothing is known of those who will ask. `engine` None: the one the models name.
    """
    configs: dict[str, Any] = {}
    findings: list[str] = []
    directories = sorted(
        path for path in repository.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not directories:
        findings.append(f"{repository}: no model in it")
    for directory in directories:
        try:
            configs[directory.name] = read_config(directory / CONFIG_FILE)
        except BuildError as error:
            findings += [*_explain_unreadable(directory / CONFIG_FILE), error.message]
    engines: dict[str, Engine] = {}
    for name, config in configs.items():
        file = repository / name / CONFIG_FILE
        named, damage = find_engine(config, repository)
        if engine is not None and "gpt_model_path" in values_of(config):
            named, damage = engine, None
        found = [damage] if damage else []
        if named is not None:
            engines[name] = named
        found += _check_model(name, config, repository, named, elsewhere=elsewhere)
        found += check_ensemble(config, configs) if config.HasField("ensemble_scheduling") else []
        found += _check_named_models(config, configs)
        findings += [f"{file}: {finding}" for finding in found]
    shared = [*_check_decoupled(configs, client), *_check_versions(engines)]
    return findings + [f"{repository}: {finding}" for finding in shared]


def _explain_unreadable(file: Path) -> Iterator[str]:
    """Yield each placeholder of a file that does not parse, which is mostly the reason."""
    if not file.is_file():
        return
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        for placeholder in _PLACEHOLDER.findall(line.partition("#")[0]):
            yield f"{file}:{number}: {placeholder} is an unfilled placeholder"


def _check_model(
    name: str, config: Any, repository: Path, engine: Engine | None, *, elsewhere: bool
) -> Iterator[str]:
    if config.name != name:
        yield f"name: {config.name!r}, expected its directory's name {name!r}"
    yield from _check_placeholders(config)
    kind = kind_of(name, config)
    settings = sorted((repository / name).glob(f"[0-9]*/{SETTINGS_FILE}"))
    if settings:
        kind = None
        for file in settings:
            yield from check_llmapi(config, file, elsewhere=elsewhere)
    if kind is not None:
        # The Python models are llmc's or upstream's own; only the C++ backend has a version.
        native = engine is not None and config.backend == "tensorrtllm"
        version = engine.version if engine is not None and native else None
        yield from check_parameters(kind, config, version)
        yield from check_paths(kind, config, repository, elsewhere=elsewhere)
    if engine is not None and kind == "tensorrt_llm":
        yield from check_engine(config, engine)
    yield from check_backend(config, engine)
    yield from check_warmup(config, repository / name)
    yield from _check_files(name, config, repository)
    yield from _check_batching(config)
    names = [tensor.name for tensor in config.input]
    # Upstream's ensemble has an output twice, which Triton takes.
    for repeated in sorted({name for name in names if names.count(name) > 1}):
        yield f"input: {repeated!r} is there twice"
    yield from _check_instances(config)


def _check_placeholders(config: Any) -> Iterator[str]:
    for key in sorted(config.parameters):
        value = config.parameters[key].string_value
        if "${" in value:
            yield f"parameters.{key}: {value!r} is an unfilled placeholder"
    for field in ("name", "backend", "platform"):
        if "${" in getattr(config, field):
            yield f"{field}: {getattr(config, field)!r} is an unfilled placeholder"


def _check_files(name: str, config: Any, repository: Path) -> Iterator[str]:
    versions = [path.name for path in (repository / name).iterdir() if path.name.isdigit()]
    if not versions:
        yield "no version directory beside it"
    for version in config.version_policy.specific.versions:
        if str(version) not in versions:
            yield f"version_policy: version {version} is not there"
    if config.backend != "python":
        return
    for version in versions:
        file = repository / name / version / "model.py"
        if not file.is_file():
            yield f"backend: python, and {name}/{version}/model.py is missing"
            continue
        try:
            compile(file.read_bytes(), str(file), "exec")
        except (SyntaxError, ValueError) as error:
            yield f"{name}/{version}/model.py: {error}"


def _check_instances(config: Any) -> Iterator[str]:
    if config.platform == "ensemble":
        if config.instance_group:
            yield "instance_group: an ensemble has none"
        return
    if not config.backend and not config.platform:
        yield "backend: missing"
    if not config.instance_group:
        yield "instance_group: missing, Triton would choose its own"
    for group in config.instance_group:
        if group.count < 1 or group.kind == group.KIND_AUTO:
            yield "instance_group: count and kind must be given"
    groups = values_of(config).get("gpu_device_ids", "")
    count = sum(group.count for group in config.instance_group)
    if groups and config.instance_group and count != len(groups.split(";")):
        yield (
            f"instance_group: {count} instances, but parameters.gpu_device_ids {groups} is for"
            f" {len(groups.split(';'))}"
        )


def _check_batching(config: Any) -> Iterator[str]:
    """Yield what Triton refuses in sizes and queues."""
    if config.max_batch_size < 0:
        yield f"max_batch_size: {config.max_batch_size}, expected 0 or more"
    if not config.HasField("dynamic_batching"):
        return
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if not 0 < size <= config.max_batch_size:
            yield (
                f"dynamic_batching.preferred_batch_size: {size}, expected 1 to max_batch_size"
                f" {config.max_batch_size}"
            )
    levels, default = batching.priority_levels, batching.default_priority_level
    if levels and not 1 <= default <= levels:
        yield f"dynamic_batching.default_priority_level: {default}, expected 1 to {levels}"
    for level in sorted(batching.priority_queue_policy):
        if not 1 <= level <= levels:
            yield f"dynamic_batching.priority_queue_policy: level {level} of {levels} levels"
    for name, policy in (
        ("default_queue_policy", batching.default_queue_policy),
        *(
            (f"priority_queue_policy[{n}]", one)
            for n, one in batching.priority_queue_policy.items()
        ),
    ):
        if policy.allow_timeout_override and not policy.default_timeout_microseconds:
            yield (
                f"dynamic_batching.{name}: allow_timeout_override, but without a default timeout,"
                " which requests can only shorten, theirs are ignored"
            )
    default_policy = batching.default_queue_policy
    delays = default_policy.timeout_action == default_policy.DELAY
    if batching.preserve_ordering and (
        levels > 1 or (delays and default_policy.default_timeout_microseconds)
    ):
        yield "dynamic_batching.preserve_ordering: not with priorities or timeout_action DELAY"


def _check_named_models(config: Any, configs: dict[str, Any]) -> Iterator[str]:
    values = values_of(config)
    for key in _MODEL_NAMES:
        if key in values and values[key] not in configs:
            yield f"parameters.{key}: model {values[key]!r} is not here"


def _check_decoupled(configs: dict[str, Any], client: Client | None) -> Iterator[str]:
    """A client meets streaming in two models; both must have it or neither, and as it asks."""
    policies = {
        name: config.model_transaction_policy.decoupled
        for name, config in configs.items()
        if kind_of(name, config) in ("tensorrt_llm", "tensorrt_llm_bls")
    }
    where = "model_transaction_policy.decoupled"
    if len(set(policies.values())) > 1:
        yield f"{where}: {policies}, expected the same everywhere"
    elif client == "stream" and False in policies.values():
        yield f"{where}: false, but clients that stream need true"
    elif client == "generate" and True in policies.values():
        yield f"{where}: true, but /generate and infer need false; or let clients stream"


def _check_versions(engines: dict[str, Engine]) -> Iterator[str]:
    """One server has one version of the backend, which loads engines of that version alone."""
    versions = {name: one.version_text for name, one in engines.items() if not one.is_ours}
    if len(set(versions.values())) > 1:
        yield f"engines are of different versions: {versions}; one server loads only one"
