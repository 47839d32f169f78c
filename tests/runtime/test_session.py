import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmc.errors import ServeError
from llmc.runtime.engines import cpu
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.request import SamplingParams
from llmc.runtime.session import open_session
from tests.runtime.paged_engine import LIMITS, PagedEngine
from tests.runtime.tiny_tokenizers import byte_level, save


@pytest.fixture
def engine_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a tokenizer whose engine is the paged test model."""
    save(byte_level(), tmp_path)
    config = {"pretrained_config": {"mapping": {"tp_size": 1}}, "llmc": {"target": "cpu"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2, 5000]}')
    limits = replace(LIMITS, vocab_size=400)

    def load(directory: Path, **_: Any) -> PagedEngine:
        assert directory == tmp_path
        return PagedEngine(limits)

    monkeypatch.setattr(cpu, "load", load)
    return tmp_path


def test_generate_streams_text_until_max_tokens(engine_dir: Path) -> None:
    with open_session(engine_dir, ExecutorConfig()) as session:
        assert session.end_ids == (1, 2), "5000 is no token of this model"
        pieces = list(session.generate("the quick", max_tokens=9))
        assert len(pieces) > 2
        again = "".join(session.generate("the quick", max_tokens=9))
        assert again == "".join(pieces)
        prompt_ids = session.tokenizer.encode("the quick")
        everything = "".join(session.generate("the quick"))
        assert everything.startswith(again[:3])
        assert len(prompt_ids) < LIMITS.max_seq_len


def test_sampling_and_stop_strings_reach_the_executor(engine_dir: Path) -> None:
    with open_session(engine_dir, ExecutorConfig()) as session:
        sampling = SamplingParams(top_k=0, temperature=3.0, seed=1)
        text = "".join(session.generate("fox", max_tokens=20, sampling=sampling))
        assert text != "".join(session.generate("fox", max_tokens=20))
        stop = text[4:6]
        cut = "".join(session.generate("fox", max_tokens=20, sampling=sampling, stop=(stop,)))
        assert cut == text[: text.index(stop)]


def test_chat_renders_the_template_and_adds_no_second_bos(engine_dir: Path) -> None:
    with open_session(engine_dir, ExecutorConfig()) as session:
        messages = [{"role": "user", "content": "hi"}]
        expected = session.generate(
            session.tokenizer.apply_chat_template(messages),
            max_tokens=5,
            add_special_tokens=False,
        )
        assert list(session.chat(messages, max_tokens=5)) == list(expected)


def test_closing_the_iterator_cancels_the_request(engine_dir: Path) -> None:
    with open_session(engine_dir, ExecutorConfig()) as session:
        stream = session.generate("the", max_tokens=90)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        session.close()
        assert session.executor.stats().used_blocks == 0
        assert session.executor.stats().iteration < 90


def test_a_refused_request_raises_at_the_call(engine_dir: Path) -> None:
    with open_session(engine_dir, ExecutorConfig()) as session:
        with pytest.raises(ServeError, match="max_tokens 1000 = .* > max_seq_len 96"):
            session.generate("the", max_tokens=1000)


def test_a_failed_request_raises_while_iterating(
    engine_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(PagedEngine, "forward", fail)
    session = open_session(engine_dir, ExecutorConfig())
    with pytest.raises(ServeError, match="the engine failed: RuntimeError: out of luck"):
        list(session.generate("the", max_tokens=5))
    session.close()
