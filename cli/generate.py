"""`llmc generate`: one question to a running server, the answer as it comes."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmc.model_repo.client import GeneratePiece

Url = Annotated[str, typer.Option(help="gRPC address of the server, host:port.")]
Model = Annotated[str, typer.Option(help="ensemble or tensorrt_llm_bls.")]
Temperature = Annotated[float | None, typer.Option(help="Randomness; 0 takes the likeliest token.")]
TopK = Annotated[int | None, typer.Option(help="Sample of the k likeliest tokens; 0 is all.")]
TopP = Annotated[float | None, typer.Option(help="Sample of the likeliest tokens of mass p.")]
MinP = Annotated[float | None, typer.Option(help="Leave out tokens below p times the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the next piece.")]
Retry = Annotated[
    float, typer.Option(help="Seconds to ask again while the server is away; not within an answer.")
]


def generate(
    text: Annotated[str, typer.Argument(help="Text to continue, or - for standard input.")],
    url: Url = "127.0.0.1:8001",
    model: Model = "ensemble",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the text into the model's chat template.")
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="System message in front of it, with --chat.")
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divide logits of seen tokens by this.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtract this from logits of seen tokens.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtract this from logits, per time a token was seen.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Fewest tokens to generate.")] = None,
    stop: Stop = None,
    bad_words: Annotated[
        list[str] | None, typer.Option(help="Text that must not appear; repeatable.")
    ] = None,
    end_id: Annotated[
        int | None, typer.Option(help="Only end token, else the model's own; -1: none.")
    ] = None,
    log_probs: Annotated[
        bool, typer.Option("--log-probs", help="Report log probabilities (with --json).")
    ] = False,
    stream: Annotated[bool, typer.Option(help="Receive the answer token by token.")] = True,
    timeout: Timeout = 300.0,
    retry: Retry = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Stream one answer from a running server.

    Ctrl-C cancels the request in the server, too.

    Examples:

    llmc generate "The capital of France is" --max-tokens 16

    llmc generate --chat "What is the capital of France?" --temperature 0.7 --seed 1

    echo "Once upon a time" | llmc generate - --json
    """
    import json

    from llmc.cli.render import print_json
    from llmc.model_repo import client

    if text == "-":
        text = sys.stdin.read()
    if chat:
        opening = [{"role": "system", "content": system}] if system is not None else []
        text = json.dumps([*opening, {"role": "user", "content": text}])
    request = client.GenerateRequest(
        text_input=text,
        max_tokens=max_tokens,
        stream=stream,
        apply_chat_template=chat or None,
        stop_words=tuple(stop or ()),
        bad_words=tuple(bad_words or ()),
        end_id=end_id,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        return_log_probs=log_probs or None,
    )
    pieces = client.generate(
        url, request, model=model, timeout_seconds=timeout, retry_seconds=retry
    )
    with contextlib.closing(pieces):
        if as_json:
            print_json(summarize(pieces))
            return
        for piece in pieces:
            typer.echo(piece.text, nl=False)
            sys.stdout.flush()
        typer.echo()


def summarize(pieces: "Iterator[GeneratePiece]") -> dict[str, Any]:
    """Read an answer to its end; return its text, counts, times and log probabilities."""
    start = time.perf_counter()
    first: float | None = None
    text: list[str] = []
    log_probs: list[float] = []
    last: GeneratePiece | None = None
    for last in pieces:
        first = first or time.perf_counter()
        text.append(last.text)
        log_probs += last.log_probs or ()
    end = time.perf_counter()
    summary: dict[str, Any] = {
        "text": "".join(text),
        "finish_reason": None if last is None else last.finish_reason,
        "num_input_tokens": 0 if last is None else last.num_input_tokens,
        "num_output_tokens": 0 if last is None else last.num_output_tokens,
        "time_to_first_token_ms": None if first is None else round(1000 * (first - start), 2),
        "total_time_ms": round(1000 * (end - start), 2),
    }
    if last is not None and last.cum_log_prob is not None:
        summary |= {"cum_log_prob": last.cum_log_prob, "log_probs": log_probs}
    return summary
