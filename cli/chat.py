"""`llmc chat`: a conversation with a running server."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmc.cli.generate import MinP, Model, Retry, Seed, Stop, Temperature, Timeout, TopK, TopP, Url

if TYPE_CHECKING:
    from collections.abc import Generator

    from llmc.model_repo.client import GeneratePiece

CLEAR = "/clear"


def chat(
    url: Url = "127.0.0.1:8001",
    model: Model = "ensemble",
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512,
    system: Annotated[str | None, typer.Option(help="System message of the conversation.")] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    timeout: Timeout = 300.0,
    retry: Retry = 0.0,
) -> None:
    """Chat with a running server; it applies the model's own chat template.

    One line is one message. Ctrl-C ends an answer, /clear forgets the conversation, Ctrl-D leaves.
    Answers go to stdout and prompts to stderr, so that a script can pipe questions in.

    Examples:

    llmc chat --temperature 0.7 --top-p 0.9

    printf 'Who are you?\\n' | llmc chat --system "Answer in one sentence."
    """
    import json

    from llmc.model_repo import client

    opening = [{"role": "system", "content": system}] if system is not None else []
    messages = list(opening)
    while (line := _read_line()) is not None:
        if line == CLEAR:
            messages = list(opening)
        if line in ("", CLEAR):
            continue
        messages.append({"role": "user", "content": line})
        request = client.GenerateRequest(
            text_input=json.dumps(messages),
            max_tokens=max_tokens,
            apply_chat_template=True,
            stop_words=tuple(stop or ()),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
        pieces = client.generate(
            url, request, model=model, timeout_seconds=timeout, retry_seconds=retry
        )
        answer = print_answer(pieces)
        messages.append({"role": "assistant", "content": answer})


def print_answer(pieces: "Generator[GeneratePiece, None, None]") -> str:
    """Print an answer as it comes and return it; Ctrl-C ends it early, in the server, too."""
    answer = ""
    try:
        for piece in pieces:
            answer += piece.text
            typer.echo(piece.text, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo(" [interrupted]", err=True, nl=False)
    finally:
        pieces.close()
    typer.echo()
    return answer


def _read_line() -> str | None:
    """Return the next line without its end, or None when there is none."""
    if sys.stdin.isatty():
        typer.echo("> ", err=True, nl=False)
    line = sys.stdin.readline()
    return line.strip() if line else None
