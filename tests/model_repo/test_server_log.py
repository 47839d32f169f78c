"""What of a server's log is shown when it has ended."""

import io
from pathlib import Path

from llmc.model_repo.server_log import ServerLog

BOOST = "terminate called after throwing an instance of 'boost::interprocess::lock_exception'"
LOG = f"""I1130 22:16:00.541126 15863 grpc_server.cc:2558] "Started GRPCInferenceService"
E1130 22:16:01.541387 15863 model.cc:7] "first line\\nsecond line"
E1130 22:16:02.541387 15863 model.cc:7] "first line\\nsecond line"
{BOOST}
  what():  boost::interprocess::lock_exception
Signal (6) received.

error: rank 1 ended
"""


def explain(text: str, file: Path | None = None) -> list[str]:
    log = ServerLog(io.StringIO(text), file)
    log.join()
    return log.explain().splitlines()


def test_errors_are_shown_once_and_an_abort_is_explained(tmp_path: Path) -> None:
    *lines, explained, where = explain(LOG, tmp_path / "log")
    assert lines == ["first line", "second line", BOOST, "rank 1 ended"]
    assert "issue 8882" in explained and "--restart" in explained
    assert str(tmp_path / "log") in where
    assert (tmp_path / "log").read_text() == LOG


def test_without_errors_the_end_is_shown() -> None:
    lines = [f"line {number}" for number in range(30)]
    *shown, where = explain("\n".join(lines))
    assert shown == lines[-20:] and "--log-file" in where
