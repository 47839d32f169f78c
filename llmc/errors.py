"""The errors a user can cause, one class per thing the reader must do; the CLI catches no other."""

from collections.abc import Sequence


class LlmcError(Exception):
    """A mistake outside llmc. `message`: thing, value found, value wanted; `hint`: what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RecipeError(LlmcError):
    """Fix the recipe file or the flag."""

    exit_code = 2


class CheckpointError(LlmcError):
    """Fix the input: checkpoint, tokenizer or artifact."""

    exit_code = 3


class UnsupportedError(LlmcError):
    """Choose another combination. `reasons` lists everything that stands in the way."""

    exit_code = 4

    def __init__(self, message: str, reasons: Sequence[str] = (), hint: str = "") -> None:
        lines = [message, *(f"  - {reason}" for reason in reasons)]
        super().__init__("\n".join(lines), hint)
        self.reasons = tuple(reasons)


class ToolchainError(LlmcError):
    """Install something: a package, a driver, MPI, Triton."""

    exit_code = 5


class BuildError(LlmcError):
    """A builder refused or failed."""

    exit_code = 6


class ServeError(LlmcError):
    """A server did not start, or a request was refused."""

    exit_code = 7


class UnavailableError(ServeError):
    """Ask again later: the server is not there, full, or ends; the request may be right.

    A server's errors reach a client as text, in which `SIGN` says so.
    """

    exit_code = 9

    SIGN = "; ask again later"


class GateError(LlmcError):
    """Quantize in another way, or accept a worse engine; the numbers are in the message."""

    exit_code = 8
