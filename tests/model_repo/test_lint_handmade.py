"""A fault of each kind is planted in a repository that llmc did not write, and found."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llmc.model_repo.lint import find_mistakes
from llmc.model_repo.parameters import PARAMETERS
from tests.cli.run import llmc
from tests.model_repo.handmade import UPSTREAM, edit_engine, write_engine, write_repository

DOCS = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_repository(tmp_path)


def replace(model: str, old: str, new: str) -> Callable[[Path], None]:
    """Return the change of one place of a config.pbtxt; asserts that it is there."""

    def change(repository: Path) -> None:
        file = repository / model / "config.pbtxt"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def engine(part: str, **changes: object) -> Callable[[Path], None]:
    return lambda repository: edit_engine(repository.with_name("engine"), part, **changes)


def add(model: str, key: str, value: str) -> Callable[[Path], None]:
    """Return a change that gives one more parameter."""
    line = f'parameters: {{ key: "{key}" value: {{ string_value: "{value}" }} }}\ninstance_group'
    return replace(model, "instance_group", line)


def give(model: str, key: str, value: str) -> Callable[[Path], None]:
    """Return the change of a parameter's value, whatever it is."""

    def change(repository: Path) -> None:
        file = repository / model / "config.pbtxt"
        pattern = rf'(key: "{key}" value: {{ string_value: )"[^"]*"'
        text, count = re.subn(pattern, lambda match: f'{match[1]}"{value}"', file.read_text())
        assert count == 1
        file.write_text(text)

    return change


WARMUP = """model_warmup [ { name: "first" batch_size: 1
  inputs { key: "input_ids" value { data_type: TYPE_INT32 dims: 8 input_data_file: "ids" } }
  inputs { key: "input_lengths" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }
} ]
"""


def second_engine(repository: Path) -> None:
    """A draft model whose engine is of another version than the first."""
    write_engine(repository.with_name("draft"), version="0.17.0")
    text = (repository / "tensorrt_llm" / "config.pbtxt").read_text()
    text = text.replace(str(repository.with_name("engine")), str(repository.with_name("draft")))
    draft = repository / "tensorrt_llm_draft"
    (draft / "1").mkdir(parents=True)
    (draft / "config.pbtxt").write_text(text.replace('"tensorrt_llm"', '"tensorrt_llm_draft"', 1))


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "placeholder left, file unreadable": (
        replace("tensorrt_llm", "max_batch_size: 64", "max_batch_size: ${triton_max_batch_size}"),
        r"config.pbtxt:2: \$\{triton_max_batch_size\} is an unfilled placeholder",
    ),
    "placeholder left in a parameter": (
        replace("tensorrt_llm", '"0.85"', '"${kv_cache_free_gpu_mem_fraction}"'),
        r"parameters.kv_cache_free_gpu_mem_fraction: .* is an unfilled placeholder",
    ),
    "misspelt parameter": (
        replace("tensorrt_llm", "enable_chunked_context", "enable_chuncked_context"),
        "enable_chuncked_context: unknown .* did you mean 'enable_chunked_context'",
    ),
    "word where a number belongs": (
        replace("tensorrt_llm", '"0.85"', '"most"'),
        "kv_cache_free_gpu_mem_fraction: 'most', expected a number, at least 0, at most 1",
    ),
    "number out of range": (
        replace("tensorrt_llm", '"0.85"', '"85"'),
        "kv_cache_free_gpu_mem_fraction: 85, expected a number, at least 0, at most 1",
    ),
    "unknown choice": (
        replace("tensorrt_llm", "inflight_fused_batching", "inflight_fused"),
        "gpt_model_type: 'inflight_fused', expected .* did you mean 'inflight_fused_batching'",
    ),
    "word that is no boolean": (
        replace(
            "postprocessing",
            '"skip_special_tokens" value: { string_value: "true"',
            '"skip_special_tokens" value: { string_value: "yes"',
        ),
        "skip_special_tokens: 'yes', expected true or false",
    ),
    "parameter of a later version": (
        lambda repository: _set_version(repository, "0.7.2"),
        "decoding_mode: TensorRT-LLM has it since 0.9, the engine is of 0.7",
    ),
    "parameter that is gone": (
        add("tensorrt_llm", "worker_path", "/worker"),
        "worker_path: gone since 0.9, use executor_worker_path",
    ),
    "tokenizer that is not there": (
        replace("preprocessing", "/tokenizer", "/tokenizers"),
        "preprocessing.*tokenizer_dir: .*/tokenizers' does not exist here",
    ),
    "engine directory without an engine": (
        lambda repository: (repository.with_name("engine") / "config.json").unlink(),
        "gpt_model_path: .*/engine/config.json: not found, expected an engine",
    ),
    "rank of the engine missing": (
        lambda repository: (repository.with_name("engine") / "rank1.engine").unlink(),
        "gpt_model_path: no engine file of rank 1, of 2 ranks",
    ),
    "GPUs and ranks differ": (
        replace("tensorrt_llm", '"0,1"', '"0,1,2,3"'),
        "gpu_device_ids: 0,1,2,3, but the engine has 2 ranks",
    ),
    "GPUs and instances differ": (
        replace("tensorrt_llm", '"0,1"', '"0,1;2,3"'),
        "instance_group: 1 instances, but parameters.gpu_device_ids 0,1;2,3 is for 2",
    ),
    "engines of different versions": (second_engine, "engines are of different versions"),
    "batch larger than the engine's": (
        engine("build_config", max_batch_size=32),
        "tensorrt_llm.*max_batch_size: 64, but the engine takes 32",
    ),
    "beams the engine was not built for": (
        replace(
            "tensorrt_llm",
            '"max_beam_width" value: { string_value: "1"',
            '"max_beam_width" value: { string_value: "4"',
        ),
        "max_beam_width: 4, but the engine was built for 1",
    ),
    "KV reuse the engine was not built for": (
        engine("build_config", plugin_config={"use_paged_context_fmha": False}),
        "enable_kv_cache_reuse: true needs an engine built with use_paged_context_fmha",
    ),
    "logits of another type": (
        engine("pretrained_config", logits_dtype="float16"),
        "output: 'context_logits' is TYPE_FP32, the engine's logits are TYPE_FP16",
    ),
    "decoupled in one model only": (
        replace("tensorrt_llm_bls", "decoupled: true", "decoupled: false"),
        "decoupled: .*'tensorrt_llm_bls': False.*, expected the same everywhere",
    ),
    "BLS names a model that is not there": (
        replace("tensorrt_llm_bls", 'string_value: "tensorrt_llm"', 'string_value: "llm"'),
        "tensorrt_llm_model_name: model 'llm' is not here",
    ),
    "no instance group": (
        replace("postprocessing", "instance_group [ { count: 1 kind: KIND_CPU } ]", ""),
        "instance_group: missing",
    ),
    "model.py missing": (
        lambda repository: (repository / "preprocessing" / "1" / "model.py").unlink(),
        "backend: python, and preprocessing/1/model.py is missing",
    ),
    "model.py that is no Python": (
        lambda repository: _break(repository / "tensorrt_llm_bls" / "1" / "model.py"),
        "tensorrt_llm_bls/1/model.py: .*line 1",
    ),
    "ensemble feeds nothing": (
        replace("ensemble", 'value: "_INPUT_ID"', 'value: "_INPUT_IDS"'),
        r"step\[1\].input_map: 'input_ids' comes from '_INPUT_ID', which nothing makes",
    ),
    "ensemble with instances": (
        replace(
            "ensemble", "platform:", "instance_group [ { count: 1 kind: KIND_CPU } ]\nplatform:"
        ),
        "instance_group: an ensemble has none",
    ),
    "preferred batch above the limit": (
        replace("preprocessing", "preferred_batch_size: [ 64 ]", "preferred_batch_size: [ 128 ]"),
        "preferred_batch_size: 128, expected 1 to max_batch_size 64",
    ),
    "priority out of its levels": (
        replace("tensorrt_llm", "max_queue_delay", "priority_levels: 2 max_queue_delay"),
        "default_priority_level: 0, expected 1 to 2",
    ),
    "engine path that depends on where the server starts": (
        lambda repository: _relative_engine(repository),
        "gpt_model_path: '../engine' is relative, and the backend looks for it from",
    ),
    "key the backend reads whatever it is": (
        replace(
            "tensorrt_llm",
            'parameters: { key: "guided_decoding_backend" value: { string_value: "" } }\n',
            "",
        ),
        "guided_decoding_backend: missing, the backend does not load without it",
    ),
    "guided decoding without a tokenizer": (
        give("tensorrt_llm", "guided_decoding_backend", "xgrammar"),
        "guided_decoding_backend: guided decoding stays off without xgrammar_tokenizer_info_path",
    ),
    "lookahead without sizes": (
        give("tensorrt_llm", "decoding_mode", "lookahead"),
        "decoding_mode: lookahead needs lookahead_window_size, lookahead_ngram_size, ",
    ),
    "choices of another decoding mode": (
        give("tensorrt_llm", "medusa_choices", "{0}, {0, 0}"),
        "medusa_choices: only with decoding_mode medusa, it is top_k_top_p",
    ),
    "LoRA cache for an engine without LoRA": (
        lambda repository: _without_lora(repository),
        "lora_cache_max_adapter_size: needs an engine built with lora_plugin",
    ),
    "fast logits between spawned ranks": (
        give("tensorrt_llm", "speculative_decoding_fast_logits", "true"),
        "speculative_decoding_fast_logits: true, but ranks without participant_ids are spawned",
    ),
    "warm-up without its data": (
        replace("tensorrt_llm", "instance_group", WARMUP + "instance_group"),
        r"model_warmup\[first\]: 'input_ids': warmup/ids is missing",
    ),
    "warm-up without a required input": (
        replace("tensorrt_llm", "instance_group", WARMUP + "instance_group"),
        r"model_warmup\[first\]: required input 'request_output_len' is missing",
    ),
    "timeouts of requests that are ignored": (
        replace("tensorrt_llm", "max_queue_size: 0", "allow_timeout_override: true"),
        "default_queue_policy: allow_timeout_override, but without a default timeout",
    ),
}


def _relative_engine(repository: Path) -> None:
    give("tensorrt_llm", "gpt_model_path", "../engine")(repository)


def _without_lora(repository: Path) -> None:
    edit_engine(repository.with_name("engine"), "build_config", plugin_config={"lora_plugin": None})
    give("tensorrt_llm", "lora_cache_max_adapter_size", "32")(repository)


def _set_version(repository: Path, version: str) -> None:
    file = repository.with_name("engine") / "config.json"
    file.write_text(file.read_text().replace("0.19.0", version))


def _break(file: Path) -> None:
    file.write_text("class TritonPythonModel\n")


def test_a_repository_without_faults_has_none(repository: Path) -> None:
    assert find_mistakes(repository) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(repository: Path, fault: str) -> None:
    plant, expected = FAULTS[fault]
    plant(repository)
    found = find_mistakes(repository)
    assert any(re.search(expected, line) for line in found), found
    assert all("\n" not in line for line in found)


def test_docs_list_every_planted_fault() -> None:
    text = DOCS.read_text()
    assert [fault for fault in FAULTS if f"- {fault}\n" not in text] == []


@pytest.mark.parametrize(
    ("decoupled", "client", "expected"),
    [
        ("true", "stream", None),
        ("true", "generate", "true, but /generate and infer need false"),
        ("false", "stream", "false, but clients that stream need true"),
        ("false", "generate", None),
    ],
)
def test_clients_and_decoupled_must_fit(
    repository: Path, decoupled: str, client: str, expected: str | None
) -> None:
    for model in ("tensorrt_llm", "tensorrt_llm_bls"):
        replace(model, "decoupled: true", f"decoupled: {decoupled}")(repository)
    found = find_mistakes(repository, client="stream" if client == "stream" else "generate")
    assert [line.partition("decoupled: ")[2].startswith(expected or "") for line in found] == (
        [True] if expected else []
    )


def test_paths_of_another_machine_are_not_looked_at(repository: Path) -> None:
    replace("preprocessing", "/tokenizer", "/tokenizers")(repository)
    assert len(find_mistakes(repository)) == 1
    assert find_mistakes(repository, elsewhere=True) == []


def test_the_table_has_upstreams_parameters() -> None:
    for model, parameters in PARAMETERS.items():
        names = [parameter.name for parameter in parameters]
        assert len(set(names)) == len(names)
        assert set(UPSTREAM[model]["parameters"]) <= set(names)


def test_the_command_prints_a_line_for_each_and_fails(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = llmc("repo", "lint", repository, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, done.stdout) == (0, "nothing found\n")
    FAULTS["misspelt parameter"][0](repository)
    FAULTS["no instance group"][0](repository)
    done = llmc("repo", "lint", repository, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, len(done.stdout.splitlines())) == (6, 2)
    assert "2 mistakes" in done.stderr
