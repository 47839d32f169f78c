"""The entry point: global options, lazily loaded subcommands, the only handler of LlmcError."""

import importlib
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import llmc
from llmc.cli import COMMANDS, GROUPS
from llmc.errors import LlmcError, RecipeError
from llmc.log import configure


class LogLevel(StrEnum):
    """Python's levels, in words."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]
Level = Annotated[
    LogLevel | None, typer.Option("--log-level", help="Least level logged to stderr (LLMC_LOG).")
]

_debug = False


class LazyCommands(TyperGroup):
    """Imports a command's module only when that command runs; help needs the table alone."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if not command or isinstance(command, TyperGroup):
            return name, command, rest
        words = [ctx.info_name] if ctx.parent else []
        return name, load_command(" ".join([*words, name or args[0]])), rest


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def load_command(name: str) -> Any:
    """Import command `name` and return its click form, with the options all commands share."""
    module_name, summary = COMMANDS[name]
    function = getattr(importlib.import_module(f"llmc.cli.{module_name}"), module_name)
    single = typer.Typer(
        add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    single.command(
        name.rpartition(" ")[2],
        short_help=summary,
        no_args_is_help=_requires_argument(function),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(_with_common_options(function))
    return typer.main.get_command(single)


def _requires_argument(function: Callable[..., Any]) -> bool:
    return any(
        parameter.default is inspect.Parameter.empty
        for parameter in inspect.signature(function).parameters.values()
    )


def _with_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `--debug` and `--log-level` stand after the subcommand too, where people write them."""

    def command(*, debug: bool, log_level: LogLevel | None, **arguments: Any) -> Any:
        _set_globals(debug=debug, log_level=log_level)
        return function(**arguments)

    signature = inspect.signature(function, eval_str=True)
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    common = [
        inspect.Parameter("debug", keyword_only, default=False, annotation=Debug),
        inspect.Parameter("log_level", keyword_only, default=None, annotation=Level),
    ]
    parameters = [p.replace(kind=keyword_only) for p in signature.parameters.values()]
    command.__signature__ = signature.replace(parameters=[*parameters, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*parameters, *common]}
    command.__doc__ = _reflow(function.__doc__ or "")
    return command


def _reflow(text: str) -> str:
    """Join each paragraph's lines, since rich breaks where the source does; keep indented ones."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        paragraph if re.search(r"^ ", paragraph, re.MULTILINE) else paragraph.replace("\n", " ")
        for paragraph in paragraphs
    )


def _set_globals(*, debug: bool, log_level: LogLevel | None) -> None:
    global _debug
    _debug = _debug or debug
    if log_level is not None:
        configure(log_level.value)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmc {llmc.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Debug = False,
    log_level: Level = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Compile Hugging Face models into quantized, tensor-parallel engines; serve them with Triton.

    Start with [bold]llmc doctor[/], then [bold]llmc build MODEL -o OUT[/] and
    [bold]llmc serve OUT/model_repo[/].
    """
    level = os.environ.get("LLMC_LOG", "info").lower()
    if level not in set(LogLevel):
        raise RecipeError(f"LLMC_LOG: {level!r}, expected one of {', '.join(LogLevel)}")
    configure(level)
    _set_globals(debug=debug, log_level=log_level)


def _placeholder() -> None:
    raise AssertionError("resolve_command loads the real command")


def _add_commands() -> None:
    groups = {
        name: typer.Typer(
            cls=LazyCommands, no_args_is_help=True, help=about, rich_markup_mode="rich"
        )
        for name, about in GROUPS.items()
    }
    for name, (_, summary) in COMMANDS.items():
        first, _, second = name.partition(" ")
        if not second:
            app.command(name, help=summary)(_placeholder)
            continue
        if not groups[first].registered_commands:
            app.add_typer(groups[first], name=first)
        groups[first].command(second, help=summary)(_placeholder)


_add_commands()


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


def main() -> None:
    """Run `llmc`; a user's mistake is two lines on stderr and its class's exit code."""
    # Without a handler SIGTERM would end the process before staging directories are removed.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except LlmcError as error:
        if _debug:
            raise
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
