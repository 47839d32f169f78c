import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from llmc.cli.main import app
from llmc.errors import ServeError
from llmc.model_repo.metrics import read_metrics
from tests.model_repo.served import Served, needs_triton

pytestmark = needs_triton


def llmc(*arguments: str, text: str = "") -> str:
    result = CliRunner().invoke(app, arguments, input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_answer_and_nothing_else_is_on_stdout(served: Served) -> None:
    flags = ("--url", served.grpc, "--max-tokens", "8")
    answer = llmc("generate", "the quick", *flags)
    assert answer.endswith("\n") and len(answer) > 4
    assert llmc("generate", "-", *flags, text="the quick") == answer
    assert llmc("generate", "the quick", "--no-stream", *flags) == answer
    assert llmc("generate", "the quick", "--model", "tensorrt_llm_bls", *flags) == answer


def test_json_has_counts_times_and_log_probs(served: Served) -> None:
    flags = ("--url", served.grpc, "--max-tokens", "8", "--json")
    summary = json.loads(llmc("generate", "the quick", "--log-probs", *flags))
    assert summary["num_output_tokens"] == len(summary["log_probs"]) == 8
    assert summary["finish_reason"] == "length"
    assert summary["cum_log_prob"] == pytest.approx(sum(summary["log_probs"]), rel=1e-5)
    assert 0 < summary["time_to_first_token_ms"] <= summary["total_time_ms"]
    assert "log_probs" not in json.loads(llmc("generate", "the quick", *flags))


def test_every_flag_reaches_the_server(served: Served) -> None:
    flags = ("--url", served.grpc, "--max-tokens", "20")
    sampled = llmc("generate", "fox", *flags, "--temperature", "4", "--top-k", "0", "--seed", "1")
    letter = next(character for character in sampled if character.isascii() and character.isalnum())
    for extra in (
        ("--top-p", "0.3"),
        ("--min-p", "0.9"),
        ("--seed", "2"),
        ("--repetition-penalty", "9"),
        ("--presence-penalty", "9"),
        ("--frequency-penalty", "9"),
        ("--bad-words", letter),
        ("--stop", letter),
        ("--chat",),
    ):
        flag = ("--temperature", "4", "--top-k", "0", "--seed", "1", *extra)
        assert llmc("generate", "fox", *flags, *flag) != sampled, extra
    ended = llmc("generate", "fox", *flags, "--end-id", "70", "--min-tokens", "20", "--json")
    assert json.loads(ended)["num_output_tokens"] == 20


def test_chat_and_system_message_make_the_template(served: Served) -> None:
    flags = ("--url", served.grpc, "--max-tokens", "4", "--json")
    short = json.loads(llmc("generate", "hi", *flags))
    chat = json.loads(llmc("generate", "hi", "--chat", *flags))
    told = json.loads(llmc("generate", "hi", "--chat", "--system", "Be brief.", *flags))
    lengths = [answer["num_input_tokens"] for answer in (short, chat, told)]
    assert lengths == sorted(set(lengths))


def test_a_refusal_is_an_error_with_numbers(served: Served) -> None:
    with pytest.raises(ServeError, match="max_tokens 9999 = .* > max_seq_len 512"):
        llmc("generate", "hi", "--url", served.grpc, "--max-tokens", "9999")


def test_ctrl_c_cancels_the_request_in_the_server(served: Served) -> None:
    command = [sys.executable, "-m", "llmc.cli.main", "generate", "the", "--max-tokens", "500"]
    command += ["--url", served.grpc, "--min-tokens", "500"]
    for _ in range(5):  # on a busy machine the answer may be complete before the signal comes
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
        assert b"Traceback" not in stderr
        if process.returncode != 0:
            break
    assert process.returncode == 130
    deadline = time.monotonic() + 10
    while read_metrics(served.metrics)["nv_trt_llm_request_metrics", "active"] > 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)
