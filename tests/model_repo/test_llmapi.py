"""Repositories of the LLM API: what is written, what lint sees, and the model up to TensorRT-LLM.

TensorRT-LLM cannot be installed here. In its place a module with the calls that model.py makes
(tensorrt_llm/llmapi/llm.py of 1.3.0rc: LLM, SamplingParams, generate_async, abort, shutdown) lies
beside it, so that Triton's side of it runs in a real server.
"""

import queue
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import yaml

from llmc.errors import LlmcError, ServeError
from llmc.model_repo.emit_llmapi import emit_llmapi_repository, is_checkpoint
from llmc.model_repo.lint import find_mistakes
from llmc.model_repo.llmapi import Parallelism
from llmc.model_repo.pbtxt import read_config
from tests.cli.run import llmc
from tests.model_repo.served import Served, needs_triton, options, serve
from tests.runtime.tiny_tokenizers import byte_level, save

TENSORS: dict[str, dict[str, Any]] = {
    "input": {
        "text_input": ("STRING", [-1], False),
        "streaming": ("BOOL", [1], True),
        "sampling_param_best_of": ("INT32", [1], True),
        "sampling_param_temperature": ("FP32", [1], True),
        "sampling_param_top_k": ("INT32", [1], True),
        "sampling_param_top_p": ("FP32", [1], True),
        "sampling_param_frequency_penalty": ("FP32", [1], True),
        "sampling_param_presence_penalty": ("FP32", [1], True),
        "sampling_param_max_tokens": ("INT32", [1], True),
        "sampling_param_stop": ("STRING", [-1], True),
        "sampling_param_seed": ("UINT64", [1], True),
        "sampling_param_exclude_input_from_output": ("BOOL", [1], True),
        "return_finish_reason": ("BOOL", [1], True),
        "return_stop_reason": ("BOOL", [1], True),
        "return_cumulative_logprob": ("BOOL", [1], True),
        "stop": ("BOOL", [1], True),
    },
    "output": {
        "text_output": ("STRING", [-1]),
        "finish_reason": ("STRING", [-1]),
        "stop_reason": ("STRING", [-1]),
        "cumulative_logprob": ("FP32", [-1]),
    },
}
"""Text tensors of NVIDIA's model. Source: triton_backend/all_models/llmapi/tensorrt_llm."""

STAND_IN = '''
import asyncio
from dataclasses import dataclass
from types import SimpleNamespace


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 32
    stop: list | None = None
    seed: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    exclude_input_from_output: bool = True


class RequestOutput:
    """Says a word for each token: the prompt, and how it was asked."""

    def __init__(self, prompt, params, streaming):
        self.prompt, self.params, self.streaming = prompt, params, streaming
        self.aborted, self.count, self.outputs = False, 0, []

    @property
    def finished(self):
        return self.aborted or self.count == self.params.max_tokens

    def abort(self):
        self.aborted = True
        with open(__file__ + ".aborted", "a") as file:
            print(self.prompt, file=file)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.outputs and self.finished:
            raise StopAsyncIteration
        while True:
            await asyncio.sleep(0.01)
            self.count += 1
            if self.streaming or self.finished:
                break
        reason = "cancelled" if self.aborted else "length" if self.finished else None
        text = f"{self.prompt}:" + f" {self.params.seed}" * self.count
        self.outputs = [
            SimpleNamespace(
                text=text, finish_reason=reason, stop_reason=None, cumulative_logprob=-0.5
            )
        ]
        return self


class LLM:
    def __init__(self, **settings):
        if settings["tensor_parallel_size"] != 2 or settings["backend"] != "pytorch":
            raise ValueError(f"unexpected {settings}")

    def generate_async(self, inputs, sampling_params=None, lora_request=None, streaming=False):
        if inputs == "refuse":
            raise ValueError("prompt is too long")
        return RequestOutput(inputs, sampling_params, streaming)

    def shutdown(self):
        pass
'''

SPLIT = Parallelism(
    tp=2, pp=1, moe_tp=None, moe_ep=None, max_batch_size=16, max_num_tokens=4096, max_seq_len=None
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as far as emitting reads it."""
    root = tmp_path_factory.mktemp("llmapi")
    save(byte_level(), root / "engine")
    (root / "engine" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return root


def emit(root: Path, name: str = "model_repo", **changes: Any) -> Path:
    repository = root / name
    repository.mkdir(parents=True)
    backend = {"batching_strategy": "inflight_fused_batching"}
    changes["tensorrt_llm"] = backend | changes.get("tensorrt_llm", {})
    emit_llmapi_repository(root / "engine", repository, options(**changes), SPLIT)
    return repository


def read_settings(repository: Path) -> dict[str, Any]:
    text = (repository / "tensorrt_llm" / "1" / "model.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_its_tensors_are_nvidias(root: Path) -> None:
    config = read_config(emit(root, "tensors") / "tensorrt_llm" / "config.pbtxt")
    field = config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type
    found: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
    for kind in found:
        for tensor in getattr(config, kind):
            dtype = field.values_by_number[tensor.data_type].name.removeprefix("TYPE_")
            optional = (tensor.optional,) if kind == "input" else ()
            found[kind][tensor.name] = (dtype, list(tensor.dims), *optional)
    assert found == TENSORS
    assert (config.backend, config.max_batch_size) == ("python", 0)
    assert config.instance_group[0].count == 1


def test_the_llm_is_told_what_the_recipe_says(root: Path) -> None:
    repository = emit(
        root,
        "settings",
        max_batch_size=8,
        decoupled=False,
        enable_kv_cache_reuse=True,
        max_tokens_in_paged_kv_cache=4096,
        tensorrt_llm={"kv_cache_host_memory_bytes": 10**9, "max_attention_window_size": (512, 64)},
    )
    assert read_settings(repository) == {
        "model": str(root / "engine"),
        "backend": "pytorch",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_batch_size": 8,
        "max_num_tokens": 4096,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.9,
            "enable_block_reuse": True,
            "max_tokens": 4096,
            "max_attention_window": [512, 64],
            "host_cache_size": 10**9,
        },
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "triton_config": {
            "max_batch_size": 0,
            "decoupled": False,
            "cancellation_check_period_ms": 100,
        },
    }
    assert find_mistakes(repository, client="generate") == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tensorrt_llm": {"medusa_choices": ((0,),)}}, "serve.tensorrt_llm.medusa_choices"),
        ({"tensorrt_llm": {"batching_strategy": "V1"}}, "serve.tensorrt_llm.batching_strategy"),
        ({"priority_levels": 2}, "serve.priority_levels"),
    ],
)
def test_what_only_engines_have_is_refused(
    root: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    (tmp_path / "engine").symlink_to(root / "engine")
    with pytest.raises(LlmcError, match=f"the LLM API's model does not have .*{reason}"):
        emit(tmp_path, **changes)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "misspelt argument": (
        lambda found: found.update(max_num_token=1),
        "max_num_token: unknown to tensorrt_llm.LLM, did you mean 'max_num_tokens'",
    ),
    "checkpoint that is not there": (
        lambda found: found.update(model="/nowhere"),
        "model: '/nowhere' does not exist here",
    ),
    "no checkpoint": (lambda found: found.pop("model"), "model: None, expected a directory"),
    "backend that was removed": (
        lambda found: found.update(backend="tensorrt"),
        "backend: 'tensorrt', expected 'pytorch'",
    ),
    "size that is none": (
        lambda found: found.update(tensor_parallel_size="two"),
        "tensor_parallel_size: 'two', expected a whole number",
    ),
    "experts split otherwise": (
        lambda found: found.update(moe_tensor_parallel_size=2, moe_expert_parallel_size=2),
        r"moe_tensor_parallel_size 2 \* moe_expert_parallel_size 2 is not tensor_parallel_size 2",
    ),
    "batches": (
        lambda found: found["triton_config"].update(max_batch_size=8),
        "triton_config.max_batch_size: 8, expected 0",
    ),
    "decoupled in one file only": (
        lambda found: found["triton_config"].update(decoupled=False),
        "triton_config.decoupled: False, config.pbtxt says the other",
    ),
    "nothing for Triton": (
        lambda found: found.pop("triton_config"),
        "triton_config: expected max_batch_size and decoupled",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_lint_finds(fault: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").symlink_to(root / "engine")
    repository = emit(tmp_path)
    assert find_mistakes(repository, client="stream") == []
    plant, expected = FAULTS[fault]
    found = read_settings(repository)
    plant(found)
    file = repository / "tensorrt_llm" / "1" / "model.yaml"
    file.write_text(yaml.safe_dump(found))
    mistakes = find_mistakes(repository)
    assert len(mistakes) == 1 and re.search(expected, mistakes[0]), mistakes


def test_the_command_knows_a_checkpoint_from_an_engine(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_checkpoint(root / "engine") and not is_checkpoint(root)
    command = ("repo", "emit", "--from-engine", root / "engine", "-o", root / "by_command")
    settings = ("--set", "mapping.tp=4", "--set", "serve.engine_dir=/models/llama")
    done = llmc(*command, *settings, capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, len(done.stdout.splitlines())) == (0, 1), done.stderr
    found = read_settings(root / "by_command")
    assert (found["tensor_parallel_size"], found["model"]) == (4, "/models/llama")


@needs_triton
@pytest.mark.slow
def test_without_tensorrt_llm_it_says_what_it_needs(root: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").symlink_to(root / "engine")
    emit(tmp_path)
    with pytest.raises(ServeError, match=r"model needs TensorRT-LLM 1\.3 or later"):
        with serve(tmp_path, tmp_path / "cache"):
            pass


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    repository = emit(root)
    (repository / "tensorrt_llm" / "1" / "tensorrt_llm.py").write_text(STAND_IN)
    with serve(root, tmp_path_factory.mktemp("cache")) as server:
        yield server


TYPES: dict[str, tuple[str, Any]] = {"STRING": ("BYTES", np.object_), "INT32": ("INT32", np.int32)}
TYPES |= {"BOOL": ("BOOL", np.bool_), "UINT64": ("UINT64", np.uint64), "FP32": ("FP32", np.float32)}


class Asking:
    """One stream to the server; responses come in order, the last one marked."""

    def __init__(self, served: Served) -> None:
        self.client = triton.InferenceServerClient(served.grpc)
        self.responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.client.start_stream(lambda result, error: self.responses.put((result, error)))

    def send(self, request_id: str = "", **values: Any) -> None:
        inputs = []
        for name, value in values.items():
            wire, dtype = TYPES[TENSORS["input"][name][0]]
            array = np.array(value if isinstance(value, list) else [value], dtype)
            inputs.append(triton.InferInput(name, array.shape, wire))
            inputs[-1].set_data_from_numpy(array)
        self.client.async_stream_infer(
            "tensorrt_llm", inputs, request_id=request_id, enable_empty_final_response=True
        )

    def receive(self) -> tuple[Any, bool]:
        result, error = self.responses.get(timeout=60)
        if error is not None:
            raise error
        return result, result.get_response().parameters["triton_final_response"].bool_param

    def texts(self) -> list[str]:
        """Return the text of every response up to the last."""
        found, final = [], False
        while not final:
            result, final = self.receive()
            text = result.as_numpy("text_output")
            found += [] if text is None else [text[0].decode()]
        return found


@pytest.fixture
def asking(served: Served) -> Iterator[Asking]:
    opened = Asking(served)
    yield opened
    opened.client.stop_stream(cancel_requests=True)


@needs_triton
@pytest.mark.slow
def test_it_answers_and_streams_all_text_so_far(asking: Asking) -> None:
    asked: dict[str, Any] = {
        "text_input": "hi",
        "sampling_param_max_tokens": 3,
        "sampling_param_seed": 7,
    }
    asking.send(**asked)
    assert asking.texts() == ["hi: 7 7 7"]
    asking.send(**asked, streaming=True)
    assert asking.texts() == ["hi: 7", "hi: 7 7", "hi: 7 7 7"]


@needs_triton
@pytest.mark.slow
def test_reasons_come_when_they_are_wanted(asking: Asking) -> None:
    wanted: dict[str, Any] = {"return_finish_reason": True, "return_cumulative_logprob": True}
    asking.send(text_input="hi", sampling_param_max_tokens=1, **wanted)
    result, final = asking.receive()
    assert final and result.as_numpy("finish_reason")[0] == b"length"
    assert result.as_numpy("cumulative_logprob").tolist() == [-0.5]
    assert result.as_numpy("stop_reason") is None


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [(["a", "b"], "text_input: 2 prompts, expected 1"), ("refuse", "prompt is too long")],
)
def test_what_is_refused_is_said(asking: Asking, text: Any, reason: str) -> None:
    asking.send(text_input=text)
    with pytest.raises(Exception, match=reason):
        asking.texts()


@needs_triton
@pytest.mark.slow
def test_a_request_is_stopped_by_its_id(served: Served, asking: Asking) -> None:
    asking.send("mine", text_input="hi", sampling_param_max_tokens=100_000, streaming=True)
    asking.receive()
    other = Asking(served)
    other.send("mine", text_input="", stop=True)
    assert other.texts() == []
    assert len(asking.texts()) < 10_000
    other.send(text_input="", stop=True)
    with pytest.raises(Exception, match="stop: true needs the request id"):
        other.texts()
    other.client.stop_stream()


@needs_triton
@pytest.mark.slow
def test_a_client_that_is_gone_ends_its_request(served: Served) -> None:
    gone = Asking(served)
    gone.send("gone", text_input="left", sampling_param_max_tokens=100_000, streaming=True)
    gone.receive()
    gone.client.stop_stream(cancel_requests=True)
    told = served.output / "model_repo" / "tensorrt_llm" / "1" / "tensorrt_llm.py.aborted"
    deadline = time.monotonic() + 30
    while not (told.is_file() and "left" in told.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
