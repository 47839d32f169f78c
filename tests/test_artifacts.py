"""Staging directories appear whole or not at all; keys and manifests notice every change."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmc import artifacts
from llmc.errors import BuildError, CheckpointError

KEY_PARTS = {
    "stage": "checkpoint",
    "inputs": {"model": "a" * 64},
    "recipe": {"dtype": "float16"},
    "tools": {"llmc": "1"},
}


def make(directory: Path) -> artifacts.Manifest:
    (directory / "sub").mkdir()
    (directory / "weights.bin").write_bytes(bytes(range(256)))
    (directory / "sub" / "config.json").write_text("{}")
    return artifacts.write_manifest(directory, **KEY_PARTS)  # type: ignore[arg-type]


def built(final: Path) -> artifacts.Manifest:
    with artifacts.stage(final) as staging:
        return make(staging)


def siblings(final: Path) -> list[str]:
    return sorted(path.name for path in final.parent.iterdir())


def test_stage_appears_at_the_end(tmp_path: Path) -> None:
    final = tmp_path / "out" / "engine"
    with artifacts.stage(final) as staging:
        (staging / "file").write_text("x")
        assert not final.exists()
    assert (final / "file").read_text() == "x"
    assert siblings(final) == ["engine"]


@pytest.mark.parametrize("exception", [ValueError, KeyboardInterrupt, SystemExit])
def test_failed_stage_leaves_what_was_there(tmp_path: Path, exception: type[BaseException]) -> None:
    final = tmp_path / "engine"
    built(final)
    with pytest.raises(exception), artifacts.stage(final) as staging:
        (staging / "half").write_text("x")
        raise exception
    assert siblings(final) == ["engine"]
    assert not (final / "half").exists()
    assert artifacts.verify(final) == []


def test_stage_replaces_the_old_directory(tmp_path: Path) -> None:
    final = tmp_path / "engine"
    built(final)
    with artifacts.stage(final) as staging:
        (staging / "new").write_text("x")
    assert siblings(final) == ["engine"]
    assert [path.name for path in final.iterdir()] == ["new"]


def test_sigterm_removes_the_staging_directory(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time, pathlib\n"
        "from llmc import artifacts\n"
        "from llmc.cli.main import _terminate\n"
        "signal.signal(signal.SIGTERM, _terminate)\n"
        "with artifacts.stage(pathlib.Path(sys.argv[1])) as staging:\n"
        "    (staging / 'half').write_text('x')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    final = tmp_path / "engine"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(final)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(siblings(final)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert siblings(final) == []


def test_next_stage_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f"engine.tmp-{dead.pid}").mkdir()
    alive = tmp_path / f"engine.tmp-{os.getppid()}"
    alive.mkdir()
    built(tmp_path / "engine")
    assert siblings(tmp_path / "engine") == ["engine", alive.name]


def test_refusing_disk_is_a_build_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="No space left"), artifacts.stage(tmp_path / "engine"):
        Path("/dev/full").write_text("x")
    assert siblings(tmp_path / "engine") == []


def test_other_os_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), artifacts.stage(tmp_path / "engine"):
        (tmp_path / "absent").read_text()


def test_equal_key_is_reused_even_after_a_move(tmp_path: Path) -> None:
    final = tmp_path / "engine"
    manifest = built(final)
    moved = final.rename(tmp_path / "elsewhere")
    assert artifacts.reusable(moved, manifest.key)
    assert not artifacts.reusable(moved, "0" * 64)
    assert not artifacts.reusable(final, manifest.key)


@pytest.mark.parametrize("part", ["inputs", "recipe", "tools", "target", "stage"])
def test_every_part_changes_the_key(part: str) -> None:
    changed = "engine" if part == "stage" else {"changed": "b"}
    before = artifacts.stage_key(**KEY_PARTS)  # type: ignore[arg-type]
    after = artifacts.stage_key(**(KEY_PARTS | {part: changed}))  # type: ignore[arg-type]
    assert before != after


def test_order_does_not_change_the_key() -> None:
    def key(recipe: dict[str, int]) -> str:
        return artifacts.stage_key(stage="s", inputs={}, recipe=recipe, tools={})

    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(bytes(255) + b"x"), "weights.bin: sha256"),
        (lambda path: path.write_bytes(b"short"), "weights.bin: 5 bytes, expected 256"),
        (lambda path: path.unlink(), "weights.bin: missing"),
    ],
)
def test_damage_is_found(
    tmp_path: Path, damage: object, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    final = tmp_path / "engine"
    manifest = built(final)
    damage(final / "weights.bin")  # type: ignore[operator]
    (found,) = artifacts.verify(final)
    assert found.startswith(said)
    assert not artifacts.reusable(final, manifest.key)
    assert "building again" in caplog.text


def test_reports_added_later_do_not_hurt(tmp_path: Path) -> None:
    final = tmp_path / "engine"
    manifest = built(final)
    (final / "gate.json").write_text("{}")
    assert artifacts.reusable(final, manifest.key)


def test_tree_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
        (directory / "a").write_bytes(b"weights")
    os.utime(two / "a", (0, 0))
    assert artifacts.digest_tree(one) == artifacts.digest_tree(two)
    (two / "a").write_bytes(b"weighte")
    assert artifacts.digest_tree(one) != artifacts.digest_tree(two)
    (two / "a").write_bytes(b"weights")
    (two / "a").rename(two / "b")
    assert artifacts.digest_tree(one) != artifacts.digest_tree(two)


def test_content_digest_of_the_manifest_is_that_of_the_tree(tmp_path: Path) -> None:
    manifest = built(tmp_path / "engine")
    assert manifest.content_digest == artifacts.digest_tree(tmp_path / "engine")
    assert manifest.num_bytes == 258


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 2}', "not json"])
def test_foreign_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        artifacts.read_manifest(tmp_path)
    assert not artifacts.reusable(tmp_path, "0" * 64)


def test_large_file_digests_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 28)
    import tracemalloc

    tracemalloc.start()
    started = time.monotonic()
    artifacts.digest_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 22
    assert time.monotonic() - started < 60
