"""Serves a model repository with a real tritonserver, asks it one question and stops it again.

    python benchmarks/demo.py demo/out/model_repo

The last step of `make demo`. The server listens on loopback, at ports that are free.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmc.model_repo.client import GenerateRequest, generate

QUESTION = "What is the capital of France, and what is it famous for? Answer in two sentences."
STOP_SECONDS = 60


@contextmanager
def served(repository: Path, log_file: Path) -> Iterator[str]:
    """Run `llmc serve` and yield host:port of its gRPC endpoint once every model is ready."""
    command = [sys.executable, "-m", "llmc.cli.main", "serve", str(repository)]
    command += ["--log-file", str(log_file)]
    command += [
        option for name in ("http", "grpc", "metrics") for option in (f"--{name}-port", "0")
    ]
    print("$", "llmc", *command[3:], flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"grpc (\S+)", line)
            if found is None:
                process.wait()
                raise SystemExit(process.returncode or 1)
            print(line, end="", flush=True)
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=STOP_SECONDS)
    print(f"server stopped, exit code {process.returncode}")
    if process.returncode:
        raise SystemExit(process.returncode)


def ask(url: str, question: str, max_tokens: int) -> None:
    """Print the answer as it streams, then how fast it came."""
    print(f"\n> {question}\n", flush=True)
    request = GenerateRequest(
        text_input=json.dumps([{"role": "user", "content": question}]),
        max_tokens=max_tokens,
        apply_chat_template=True,
    )
    started = time.perf_counter()
    first = None
    answer, num_tokens, reason = "", 0, None
    for piece in generate(url, request, timeout_seconds=120):
        first = first or time.perf_counter() - started
        print(piece.text, end="", flush=True)
        answer += piece.text
        num_tokens, reason = piece.num_output_tokens, piece.finish_reason or reason
    seconds = time.perf_counter() - started
    if not answer.strip() or first is None:
        raise SystemExit("error: the server gave no answer")
    print(
        f"\n\n[{num_tokens} tokens in {seconds:.2f} s, the first after {first:.2f} s,"
        f" finished by {reason}]\n",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("repository", type=Path, help="model repository, made by `llmc build`")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--max-tokens", type=int, default=80)
    arguments = parser.parse_args()
    log_file = arguments.repository.parent / "tritonserver.log"
    with served(arguments.repository, log_file) as url:
        ask(url, arguments.question, arguments.max_tokens)


if __name__ == "__main__":
    main()
