"""Triton's preprocessing and postprocessing models, for real, over every kind of tokenizer."""

import json
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from llmc.model_repo import configs
from llmc.model_repo.emit import MODEL_FILES
from llmc.model_repo.engine_config import Engine
from llmc.model_repo.pbtxt import CONFIG_FILE, write_config
from llmc.model_repo.ports import pick_ports
from llmc.model_repo.server import ServerConfig, ServerProcess
from llmc.model_repo.tritonserver import find_tritonserver
from llmc.runtime.tokenizer import Tokenizer
from tests.model_repo.served import needs_triton, options
from tests.runtime.tiny_tokenizers import MAKERS, save

pytestmark = [needs_triton, pytest.mark.slow]

KINDS = ["byte_level_added", "byte_fallback_added", "gemma", "unigram_added", "unigram_bytes"]
MESSAGES = [{"role": "user", "content": " naïve 日本語 👩‍👩‍👧 café"}]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.getbasetemp() / "served_tokenizers"
    return {kind: Tokenizer.open(save(MAKERS[kind](), root / kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def client(
    opened: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[triton.InferenceServerClient]:
    """A server with both models of every kind, each under a name of its own."""
    root = tmp_path_factory.getbasetemp() / "served_tokenizers"
    repository = tmp_path_factory.mktemp("repository")
    for kind in opened:
        deployed = configs.Deployed(
            engine=Engine(
                directory=root / kind,
                version_text="",
                is_ours=True,
                pretrained={"logits_dtype": "float32"},
                build={"max_batch_size": 4},
            ),
            engine_path=str(root / kind),
            tokenizer_path=str(root / kind),
            own_tensors=True,
        )
        for made in (configs.preprocessing, configs.postprocessing):
            spec = made(options(), deployed)
            directory = repository / f"{spec.name}_{kind}"
            (directory / "1").mkdir(parents=True)
            shutil.copyfile(MODEL_FILES / spec.name / "1/model.py", directory / "1/model.py")
            write_config(replace(spec, name=directory.name), directory / CONFIG_FILE)
    ports = pick_ports("127.0.0.1", {"http": 0, "grpc": 0})
    config = ServerConfig(
        repository=repository,
        host="127.0.0.1",
        http_port=ports["http"],
        grpc_port=ports["grpc"],
        metrics_port=None,
        ready_timeout_seconds=180,
        drain_seconds=1,
    )
    server = find_tritonserver(None, cache=tmp_path_factory.mktemp("cache"))
    with ServerProcess(server, config) as process:
        assert process.wait_until_ready(threading.Event())
        yield triton.InferenceServerClient(config.grpc_url)


def infer(client: triton.InferenceServerClient, model: str, **arrays: Any) -> Any:
    inputs = []
    for name, (array, dtype) in arrays.items():
        inputs.append(triton.InferInput(name, array.shape, dtype))
        inputs[-1].set_data_from_numpy(array)
    return client.infer(model, inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chat", [True, False])
def test_preprocessing(
    client: triton.InferenceServerClient, opened: dict[str, Tokenizer], kind: str, chat: bool
) -> None:
    rendered = opened[kind].apply_chat_template(MESSAGES)
    query = json.dumps(MESSAGES) if chat else rendered
    answer = infer(
        client,
        f"preprocessing_{kind}",
        QUERY=(np.array([[query.encode()]], np.object_), "BYTES"),
        REQUEST_OUTPUT_LEN=(np.array([[1]], np.int32), "INT32"),
        APPLY_CHAT_TEMPLATE=(np.array([[chat]]), "BOOL"),
    )
    wanted = opened[kind].encode(rendered, add_special_tokens=False)
    assert answer.as_numpy("INPUT_ID")[0].tolist() == wanted
    assert wanted.count(opened[kind].bos_id or 0) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_postprocessing(
    client: triton.InferenceServerClient, opened: dict[str, Tokenizer], kind: str
) -> None:
    tokens = random.Random(kind).choices(range(opened[kind].vocab_size), k=80)
    answer = infer(
        client,
        f"postprocessing_{kind}",
        TOKENS_BATCH=(np.array([[tokens]], np.int32), "INT32"),
        SEQUENCE_LENGTH=(np.array([[len(tokens)]], np.int32), "INT32"),
    )
    assert answer.as_numpy("OUTPUT")[0].decode() == opened[kind].decode(tokens)
