"""A model with several end tokens in config.json alone: each of them ends an answer."""

import json
from pathlib import Path

from llmc.builders import pipeline
from llmc.log import NullProgress
from llmc.recipes.schema import Recipe
from llmc.runtime.engine import KvCacheConfig
from llmc.runtime.executor import ExecutorConfig
from llmc.runtime.request import Request, Response
from llmc.runtime.session import Session, open_session
from tests.builders.tiny_hf import write_model

CONFIG = ExecutorConfig(kv=KvCacheConfig(max_tokens=256))


def build(model: Path, output: Path) -> Path:
    recipe = Recipe.model_validate({"model": str(model), "build": {"max_batch_size": 4}})
    pipeline.build(recipe, output, until="engine", progress=NullProgress(), report=lambda _: None)
    return output / "engine"


def answer(session: Session, prompt: int) -> Response:
    request = Request(prompt_ids=(prompt,), max_tokens=40, end_ids=session.end_ids)
    (response,) = session.executor.await_responses(session.executor.enqueue(request), 60)
    return response


def test_each_of_several_ends_stops(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (model / "generation_config.json").unlink()
    (model / "tokenizer_config.json").unlink()
    with open_session(build(model, tmp_path / "endless"), CONFIG) as session:
        assert session.end_ids == ()
        free = {prompt: answer(session, prompt).token_ids for prompt in range(2, 12)}
    assert {len(tokens) for tokens in free.values()} == {40}
    ends = sorted({tokens[position] for position, tokens in enumerate(free.values())})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": ends}))
    stopped_by = set()
    with open_session(build(model, tmp_path / "ending"), CONFIG) as session:
        assert session.end_ids == tuple(ends) and len(ends) > 1
        for prompt, tokens in free.items():
            response = answer(session, prompt)
            first = next(i for i, token in enumerate(tokens) if token in ends)
            assert response.finish_reason == "end_id"
            assert response.token_ids in (tokens[:first], tokens[: first + 1])
            stopped_by.add(tokens[first])
    assert len(stopped_by) > 1, "or only one of them was tried"
