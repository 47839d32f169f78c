"""Chats over a real engine with every kind of tokenizer: tokens in, streamed text out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmc.checkpoint import CheckpointConfig
from llmc.errors import ServeError
from llmc.runtime.engine import KvCacheConfig, load_engine
from llmc.runtime.executor import Executor, ExecutorConfig
from llmc.runtime.request import Request, Response, SamplingParams
from llmc.runtime.session import Session
from llmc.runtime.tokenizer import Tokenizer
from tests.plugins.tiny_llama import TinyLlama
from tests.runtime.cpu_engines import LIMITS, build_engine
from tests.runtime.tiny_tokenizers import MAKERS, save

MESSAGES = [{"role": "user", "content": " naïve 日本語 👩‍👩‍👧"}]
NUM_TOKENS = 60
KV = KvCacheConfig(max_tokens=LIMITS.max_seq_len)


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine with more tokens than any of the tokenizers has."""
    tiny = TinyLlama.make(vocab_size=352, max_position_embeddings=LIMITS.max_seq_len)
    config = CheckpointConfig(arch=tiny.arch, dtype="float32")
    return build_engine(tiny, config, tmp_path_factory.mktemp("engine"))


@pytest.fixture(params=MAKERS)
def session(engine_dir: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    tokenizer = Tokenizer.open(save(MAKERS[request.param](), tmp_path))
    executor = Executor(load_engine(engine_dir, kv=KV), tokenizer, ExecutorConfig(kv=KV))
    with Session(executor=executor, tokenizer=tokenizer, end_ids=()) as opened:
        yield opened


def test_a_streamed_chat_is_the_text_of_its_tokens(session: Session) -> None:
    tokenizer = session.tokenizer
    rendered = tokenizer.apply_chat_template(MESSAGES)
    prompt = tokenizer.encode(rendered, add_special_tokens=False)
    assert prompt.count(prompt[0]) == 1 and prompt[0] == tokenizer.bos_id
    sampling = SamplingParams(top_k=0, temperature=2.0, seed=3)
    request = Request(
        prompt_ids=tuple(prompt), max_tokens=NUM_TOKENS, sampling=sampling, streaming=True
    )
    responses: list[Response] = []
    number = session.executor.enqueue(request)
    while not (responses and responses[-1].is_final):
        responses += session.executor.await_responses(number)
    tokens = [token for response in responses for token in response.token_ids]
    assert len(tokens) == NUM_TOKENS and len(responses) > NUM_TOKENS // 2
    text = "".join(response.text for response in responses)
    assert text == tokenizer.decode(tokens)
    pieces = list(session.chat(MESSAGES, max_tokens=NUM_TOKENS, sampling=sampling))
    assert "".join(pieces) == text


def test_a_token_the_model_has_no_row_for_is_refused(session: Session) -> None:
    """As a tokenizer with more tokens than the model has rows may bring them."""
    beyond = session.executor.limits.vocab_size
    request = Request(prompt_ids=(5, beyond), max_tokens=1)
    with pytest.raises(ServeError, match=f"prompt token {beyond} is outside the vocabulary"):
        session.executor.enqueue(request)
