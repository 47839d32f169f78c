"""A tiny random llama, built as `llmc build` does, its repository, a real tritonserver on it."""

import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmc.builders import pipeline
from llmc.gate.step import gate_build
from llmc.log import NullProgress
from llmc.model_repo.emit import emit_repository
from llmc.model_repo.mpi import find_launcher
from llmc.model_repo.options import RepositoryOptions
from llmc.model_repo.ports import pick_ports
from llmc.model_repo.ranks import choose_leader, find_ranked_models, leader_ranks
from llmc.model_repo.server import ServerConfig, ServerProcess
from llmc.model_repo.tritonserver import find_tritonserver
from llmc.recipes.schema import Recipe
from llmc.recipes.serve import ServeRecipe
from tests.builders.tiny_hf import write_model
from tests.model_repo.leftovers import Owned
from tests.runtime.tiny_tokenizers import byte_level, save

MAX_SEQ_LEN = 512
TOKENS_PER_BLOCK = 32

needs_triton = pytest.mark.skipif(
    shutil.which("tritonserver") is None and importlib.util.find_spec("pytriton") is None,
    reason="no tritonserver: pip install 'llmc[triton]'",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server and what it serves."""

    output: Path
    process: ServerProcess

    @property
    def grpc(self) -> str:
        return self.process.config.grpc_url

    @property
    def http(self) -> str:
        return self.process.config.http_url

    @property
    def metrics(self) -> str:
        return f"{self.process.config.host}:{self.process.config.metrics_port}"


def options(**changes: Any) -> RepositoryOptions:
    """Return a recipe's default options, with `changes`."""
    return RepositoryOptions(**(ServeRecipe().model_dump() | changes))


def build_engine(
    output: Path, *, mapping: dict[str, int] | None = None, gate: bool = True, **changes: Any
) -> Path:
    """Build and gate a float32 engine of a random model whose tokenizer knows every byte.

    `changes` are fields of the model's config.json; the weights are the same for every `mapping`.
    """
    tokenizer = byte_level()
    shape: dict[str, Any] = {"num_hidden_layers": 1, "max_position_embeddings": MAX_SEQ_LEN}
    model = write_model(
        output.parent / f"{output.name}-hf",
        vocab_size=tokenizer.get_vocab_size(),
        **shape | changes,
    )
    save(tokenizer, model)
    # A random model would end anywhere; no token does but the tokenizer's own end.
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    recipe = Recipe.model_validate(
        {
            "model": str(model),
            "dtype": "float32",
            "mapping": mapping or {},
            "build": {
                "max_batch_size": 32,
                "max_num_tokens": 256,
                "plugins": {"tokens_per_block": TOKENS_PER_BLOCK},
            },
            "gate": {"max_tokens": 64},
        }
    )
    pipeline.build(
        recipe, output, until="engine", progress=NullProgress(), report=lambda result: None
    )
    if gate:
        cache = output.parent / "cache"
        gate_build(recipe, output, cache=cache, workers=1, progress=NullProgress())
    return output / "engine"


def emit(output: Path, **changes: Any) -> Path:
    """Emit the repository of `output`/engine; return its directory.

    The tiny model writes hundreds of tokens between two looks for lost clients by default.
    """
    repository = output / "model_repo"
    shutil.rmtree(repository, ignore_errors=True)
    repository.mkdir()
    defaults = {
        "max_tokens_in_paged_kv_cache": 32 * MAX_SEQ_LEN,
        "cancellation_check_period_ms": 10,
    }
    changes = defaults | changes
    emit_repository(output / "engine", repository, options(**changes))
    return repository


@contextmanager
def serve(output: Path, cache: Path) -> Iterator[Served]:
    """Serve `output`/model_repo until the block ends, in leader mode as a job of its ranks.

    Nothing of it is left then.
    """
    leader = choose_leader(find_ranked_models(output / "model_repo"))
    ports = pick_ports("127.0.0.1", {"http": 0, "grpc": 0, "metrics": 0})
    config = ServerConfig(
        repository=output / "model_repo",
        host="127.0.0.1",
        http_port=ports["http"],
        grpc_port=ports["grpc"],
        metrics_port=ports["metrics"],
        ready_timeout_seconds=180,
        drain_seconds=10,
        ranks=None if leader is None else leader_ranks(leader, find_launcher(), None),
    )
    owned = Owned()
    with ServerProcess(find_tritonserver(None, cache=cache), config) as process:
        assert process.wait_until_ready(threading.Event())
        owned.look(process.pid)
        yield Served(output=output, process=process)
        assert process.returncode is None, process.explain()
    owned.require_nothing_left()
