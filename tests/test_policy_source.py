"""What docs/STYLE.md says of source files and can be read off them."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("llmc", "builders", "cli", "model_repo", "plugins", "recipes")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_INIT_LINES = 60

ADDRESSES: dict[str, tuple[str, ...]] = {
    "torch": (
        *("plugins/*/reference.py", "llmc/quant/*.py", "builders/calibrate.py"),
        *("builders/targets/tensorrt_*.py", "llmc/runtime/engines/tensorrt_*.py"),
    ),
    "transformers": ("llmc/runtime/tokenizer.py", "builders/calibrate.py"),
    "tokenizers": (
        *("llmc/runtime/tokenizer.py", "builders/hf/gguf_tokenizer.py"),
        "builders/quantize/texts.py",
    ),
    "jinja2": ("llmc/runtime/chat_template.py",),
    "mpi4py": ("llmc/runtime/comm.py",),
    "tensorrt": ("*/tensorrt_*.py", "*/tensorrt.py"),
    "tensorrt_rtx_bindings": ("*/tensorrt_rtx*.py",),
    "tensorrt_llm": ("*/tensorrt_llm*.py", "model_repo/models/llmapi/1/model.py"),
    "pydantic": ("recipes/*.py", "llmc/artifacts.py", "llmc/stages.py", "llmc/gate/record.py"),
    "yaml": (
        *("recipes/*.py", "model_repo/deploy/pods.py", "model_repo/*llmapi.py"),
        "model_repo/models/llmapi/1/model.py",
    ),
    "typer": ("cli/*.py",),
    "rich": ("cli/*.py",),
    "gguf": ("builders/hf/gguf*.py",),
    "tritonclient": ("model_repo/*.py",),
    "google": ("model_repo/*.py",),
    "triton_python_backend_utils": ("model_repo/models/*", "llmc/runtime/triton*.py"),
}
"""Package → the only files that may import it."""

PROCESS_BOUNDARIES = (
    "model_repo/models/*",
    "llmc/runtime/worker.py",
    "llmc/runtime/rank.py",
    "llmc/runtime/executor.py",
)
"""Where `except Exception` may stand: a thread or process that must report instead of vanishing."""


def sources() -> list[Path]:
    return sorted(
        path
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    )


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


each_source = pytest.mark.parametrize("path", sources(), ids=name)


def test_the_walk_sees_every_room() -> None:
    assert {name(path).split("/")[0] for path in sources()} == set(ROOMS)


@each_source
def test_file_is_one_idea(path: Path) -> None:
    limit = MAX_INIT_LINES if path.name == "__init__.py" else MAX_FILE_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit
    assert path.stem not in ("utils", "helpers", "common", "misc")


@each_source
def test_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(tree(path))


@each_source
def test_functions_are_short(path: Path) -> None:
    """Counted from the first statement after signature and docstring."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = 1 if ast.get_docstring(node) and len(node.body) > 1 else 0
            length = (node.end_lineno or 0) - node.body[first].lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name}: {length} lines"


@each_source
def test_heavy_packages_are_imported_at_their_address(path: Path) -> None:
    for package in imported_packages(tree(path)):
        allowed = ADDRESSES.get(package, ("*",))
        assert any(fnmatchcase(name(path), pattern) for pattern in allowed), (
            f"imports {package}, which only {', '.join(allowed)} may"
        )


@each_source
def test_nothing_is_swallowed(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            broad = caught in ("everything", "Exception", "BaseException")
            reraised = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            boundary = any(fnmatchcase(name(path), pattern) for pattern in PROCESS_BOUNDARIES)
            assert not broad or reraised or boundary, f"line {node.lineno} catches {caught}"
        if isinstance(node, ast.Raise) and node.exc is not None:
            assert "NotImplementedError" not in ast.unparse(node.exc), f"line {node.lineno}"


@each_source
def test_only_the_command_line_prints(path: Path) -> None:
    if name(path).startswith("cli/"):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"line {node.lineno}"


@each_source
def test_todo_names_an_issue(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            assert re.search(r"TODO\(#\d+\)", line), f"line {number}"


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")), ids=name
)
def test_links_of_documents_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def imported_packages(module: ast.Module) -> Iterator[str]:
    """Yield the top-level packages a module imports, inside functions too, for types excepted."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
