import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from llmc.errors import CheckpointError
from llmc.tensors import TensorInfo
from llmc.weights import SafetensorsFile, SafetensorsWriter

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(-1, 1, 7).astype(np.float16),
    "brain": np.linspace(-3, 3, 10).astype(ml_dtypes.bfloat16).reshape(5, 2),
    "bytes": np.arange(-3, 3, dtype=np.int8),
    "empty": np.empty((0, 4), np.float32),
    "scalar": np.array(2.5, np.float32),
}
INFOS = [
    TensorInfo(name=name, dtype=dtype, shape=ARRAYS[name].shape)
    for name, dtype in zip(
        ARRAYS, ("float32", "float16", "bfloat16", "int8", "float32", "float32"), strict=True
    )
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    with SafetensorsWriter(path, INFOS, {"format": "pt"}) as writer:
        for name, array in ARRAYS.items():
            writer.write(name, array)
    return path


def test_what_is_written_is_read(path: Path) -> None:
    file = SafetensorsFile.open(path)
    assert list(file.infos.values()) == INFOS
    assert file.metadata == {"format": "pt"}
    for name, array in ARRAYS.items():
        read = file.read(name)
        assert read.dtype == array.dtype and read.shape == array.shape
        assert not read.size or not read.flags.writeable
        np.testing.assert_array_equal(read, array)


def test_the_safetensors_package_reads_our_files(path: Path) -> None:
    loaded = safetensors.numpy.load_file(path)
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert loaded[name].tobytes() == array.tobytes()


def test_we_read_files_of_the_safetensors_package(tmp_path: Path) -> None:
    arrays = {name: array for name, array in ARRAYS.items() if array.size}
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors")
    file = SafetensorsFile.open(tmp_path / "theirs.safetensors")
    assert file.infos.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(file.read(name), array)


def test_rows_are_read_into_memory_of_their_own(path: Path) -> None:
    file = SafetensorsFile.open(path)
    for name in ("matrix", "half", "brain", "bytes"):
        for start, stop in ((0, 1), (1, 3), (2, 2), (0, len(ARRAYS[name]))):
            rows = file.read_rows(name, start, stop)
            np.testing.assert_array_equal(rows, ARRAYS[name][start:stop])
            assert not np.shares_memory(rows, file.read(name)) and rows.flags.writeable


def test_views_survive_release_and_close(path: Path) -> None:
    file = SafetensorsFile.open(path)
    view = file.read("matrix")
    file.release()
    file.close()
    np.testing.assert_array_equal(view, ARRAYS["matrix"])


def test_rows_arrive_in_any_order_and_pieces(tmp_path: Path) -> None:
    matrix = ARRAYS["matrix"]
    with SafetensorsWriter(tmp_path / "a", [INFOS[0], INFOS[3]]) as writer:
        writer.write_rows("matrix", 2, matrix[2:])
        writer.write("bytes", ARRAYS["bytes"])
        writer.write_rows("matrix", 0, matrix[:2])
    np.testing.assert_array_equal(SafetensorsFile.open(tmp_path / "a").read("matrix"), matrix)


def test_an_incomplete_file_is_a_programmers_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="matrix"):
        with SafetensorsWriter(tmp_path / "a", [INFOS[0]]) as writer:
            writer.write_rows("matrix", 0, ARRAYS["matrix"][:1])


def test_rows_written_twice_are_a_programmers_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="more bytes"):
        with SafetensorsWriter(tmp_path / "a", [INFOS[0]]) as writer:
            writer.write("matrix", ARRAYS["matrix"])
            writer.write_rows("matrix", 0, ARRAYS["matrix"][:1])


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        with SafetensorsWriter(tmp_path / "a", [INFOS[0]]) as writer:
            writer.write("matrix", ARRAYS["matrix"])
            raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_data_begins_on_a_cache_line(path: Path) -> None:
    length = int.from_bytes(path.read_bytes()[:8], "little")
    assert (8 + length) % 64 == 0


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Return an edit of a file's bytes that changes its header and keeps its data."""

    def edit(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return edit


def with_header(text: bytes) -> Callable[[bytes], bytes]:
    return lambda content: len(text).to_bytes(8, "little") + text


ENTRY = b'{"dtype":"I8","shape":[0],"data_offsets":[0,0]}'
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no header": (lambda content: content[:5], "5 bytes, too short"),
    "truncated header": (lambda content: content[:40], "truncated in its header: 40 bytes"),
    "absurd header": (lambda content: b"\xff" * 16, "header of 18446744073709551615 bytes"),
    "truncated data": (lambda content: content[:-1], "truncated at scalar: "),
    "half the data": (lambda content: content[:-60], "truncated at "),
    "trailing bytes": (lambda content: content + b"x", "expected .* by its header"),
    "not JSON": (with_header(b"{]"), "header is not JSON"),
    "not text": (with_header(b"\xff\xfe"), "header is not JSON"),
    "not an object": (with_header(b"[1]"), "header is a list"),
    "twice": (with_header(b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}"), "a: twice in the header"),
    "unknown dtype": (edited(lambda h: h["half"].update(dtype="F4")), "half: dtype 'F4'"),
    "no offsets": (edited(lambda h: h["half"].pop("data_offsets")), "half: header entry lacks"),
    "negative size": (edited(lambda h: h["half"].update(shape=[-7])), r"half: shape \[-7\]"),
    "text as size": (edited(lambda h: h["half"].update(shape="7")), "half: shape '7'"),
    "wrong size": (edited(lambda h: h["half"].update(shape=[8])), "half: 14 bytes, expected 16"),
    "three offsets": (
        edited(lambda h: h["half"].update(data_offsets=[48, 62, 62])),
        "half: data_offsets",
    ),
    "overlap": (
        edited(lambda h: h["half"].update(data_offsets=[46, 60])),
        "half: data starts at 46, expected 48",
    ),
    "hole": (edited(lambda h: h.pop("half")), "brain: data starts at 62, expected 48"),
    "odd metadata": (edited(lambda h: h.update(__metadata__={"a": 1})), "__metadata__: "),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name(damage: str, path: Path) -> None:
    damaging, message = DAMAGES[damage]
    path.write_bytes(damaging(path.read_bytes()))
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile.open(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent.safetensors: cannot be read: No such file"):
        SafetensorsFile.open(tmp_path / "absent.safetensors")


def test_a_file_that_shrinks_after_opening_is_an_error(path: Path) -> None:
    file = SafetensorsFile.open(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="scalar|bytes: file ends"):
        file.read_rows("bytes", 0, 6)
