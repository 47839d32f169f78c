"""Literal tables "public name → module": load the one asked for, name the known ones on a miss."""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from types import ModuleType

from llmc.errors import UnsupportedError


def load(table: Mapping[str, str], name: str, *, package: str, kind: str) -> ModuleType:
    """Import `package.table[name]`.

    Raises: UnsupportedError with the known names and the closest one when `table` lacks `name`.
    """
    if name not in table:
        close = get_close_matches(name, table, n=1)
        raise UnsupportedError(
            f"unknown {kind} {name!r}; known: {', '.join(sorted(table))}",
            hint=f"did you mean {close[0]!r}?" if close else "",
        )
    return importlib.import_module(f"{package}.{table[name]}")
