"""Published tables: CSV with comments, columns by name, every value checked."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError

Values = Mapping[str, Any]
"""One row: column to value; None where an optional one is empty."""


def text(value: str) -> str:
    """Anything but nothing."""
    if not value:
        raise ValueError("is empty")
    return value


def count(value: str) -> int:
    """A whole number from 0 on."""
    number = int(value)
    if number < 0:
        raise ValueError("is negative")
    return number


def positive(value: str) -> int:
    """A whole number from 1 on."""
    number = int(value)
    if number < 1:
        raise ValueError("is not positive")
    return number


def figure(value: str) -> float:
    """A finite number from 0 on."""
    number = float(value)
    if not isfinite(number) or number < 0:
        raise ValueError("is no finite number from 0 on")
    return number


def share(value: str) -> float:
    """From 0 to 1."""
    number = figure(value)
    if number > 1:
        raise ValueError("is above 1")
    return number


def maybe(of: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same, or empty."""

    def read(value: str) -> Any:
        return of(value) if value else None

    return read


def read_table(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> list[Values]:
    """All rows of a CSV whose first line that is no comment (``#``) names its columns.

    Raises InputError naming file, line and column, and what would be right.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)
        ) from None
    kept = [
        (number, line)
        for number, line in enumerate(content.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not kept:
        raise InputError(f"holds no table; its columns are {', '.join(columns)}", where=str(path))
    rows = list(csv.reader(line for _, line in kept))
    names, place = [name.strip() for name in rows[0]], f"{path}:{kept[0][0]}"
    if unknown := [name for name in names if name not in columns]:
        raise InputError(f"unknown column {unknown[0]!r}; known are {', '.join(columns)}", where=place)
    if missing := [name for name in columns if name not in names]:
        raise InputError(f"column {missing[0]!r} is missing; it has {', '.join(names)}", where=place)
    if len(set(names)) < len(names):
        raise InputError("a column comes twice", where=place)
    found: list[Values] = []
    for (number, _), row in zip(kept[1:], rows[1:], strict=True):
        if len(row) != len(names):
            raise InputError(f"{len(row)} values for {len(names)} columns", where=f"{path}:{number}")
        values = {}
        for name, value in zip(names, row, strict=True):
            try:
                values[name] = columns[name](value.strip())
            except ValueError as error:
                what = str(error) if str(error).startswith("is ") else "is no number"
                raise InputError(f"{name}: {value.strip()!r} {what}", where=f"{path}:{number}") from None
        found.append(values)
    if not found:
        raise InputError("holds no rows", where=str(path))
    return found
