import json

from typer.testing import CliRunner

from llmc.cli.main import app
from llmc.model_repo.client import GenerateRequest, generate
from tests.model_repo.served import Served, needs_triton

pytestmark = needs_triton


def answer_to(served: Served, messages: list[dict[str, str]]) -> str:
    request = GenerateRequest(
        text_input=json.dumps(messages), max_tokens=6, apply_chat_template=True
    )
    return "".join(piece.text for piece in generate(served.grpc, request))


def test_a_conversation_is_remembered_until_cleared(served: Served) -> None:
    system = {"role": "system", "content": "Be brief."}
    first = {"role": "user", "content": "the fox"}
    second = {"role": "user", "content": "the dog"}
    one = answer_to(served, [system, first])
    two = answer_to(served, [system, first, {"role": "assistant", "content": one}, second])
    three = answer_to(served, [system, second])
    lines = "the fox\n\nthe dog\n/clear\nthe dog\n"
    arguments = ["chat", "--url", served.grpc, "--max-tokens", "6", "--system", "Be brief."]
    result = CliRunner().invoke(app, arguments, input=lines)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{one}\n{two}\n{three}\n"
    assert two != three
