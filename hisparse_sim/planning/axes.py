"""Which points a sweep has: fields and their values, crossed, paired or from a CSV file."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.yaml_file import parse_yaml, read_text

Choice = dict[str, Any]
"""A point: the value of each varied field, by its path (``engine.host_pool_gib``)."""

_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_NUMBER = r"[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(log)?(\d+)?)?")
MOST_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Axis:
    """A field and the values that it takes, in order."""

    path: str
    values: tuple[Any, ...]

    @property
    def place(self) -> str:
        """How an error names it."""
        return f"--vary {self.path}"


def parse_axis(text: str) -> Axis:
    """``PATH=V1,V2``; ``1..8`` is each whole number, ``1..64:log`` doubles, ``0..1:5`` and ``1..100:log5``
    are so many values, evenly or by a factor apart.

    Raises ``InputError`` naming the flag.
    """
    path, equals, given = text.partition("=")
    path, where = path.strip(), f"--vary {text}"
    if not equals or not _PATH.fullmatch(path):
        raise InputError("is not path=values, as in workload.concurrency=1,8,32 or 1..64:log", where=where)
    listed = parse_yaml(f"[{given}]", where=where)
    if not isinstance(listed, list) or not listed:
        raise InputError("holds no value", where=where)
    values: list[Any] = []
    for value in listed:
        match = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
        if value is None:
            raise InputError("holds an empty value", where=where)
        for each in _range(match, where) if match else [value]:
            if each not in values:
                values.append(each)
    return Axis(path, tuple(values))


def _range(match: re.Match[str], where: str) -> list[int | float]:
    low, high = _number(match[1]), _number(match[2])
    log, count = match[3] is not None, int(match[4]) if match[4] else None
    if high < low:
        raise InputError(f"{match[1]}..{match[2]} runs backwards; write the smaller first", where=where)
    if log and low <= 0:
        raise InputError(f"{match[1]}..{match[2]}:log begins at {match[1]}, not above 0", where=where)
    if count is not None and not 1 <= count <= MOST_POINTS:
        raise InputError(f"{count} values; give 1 to {MOST_POINTS:,}", where=where)
    whole = isinstance(low, int) and isinstance(high, int)
    if count is None and log:
        # Doubling, and the end whether or not it is a double.
        steps = range(math.floor(math.log2(high / low) + 1e-9) + 1)
        found: list[int | float] = [low * 2**n for n in steps]
        return found if found[-1] == high else [*found, high]
    if count is None:
        if not whole:
            raise InputError(f"{match[0]} is not of whole numbers; say how many (0..1:5)", where=where)
        if high - low >= MOST_POINTS:
            raise InputError(f"{match[0]} has more than {MOST_POINTS:,} values", where=where)
        return list(range(int(low), int(high) + 1))
    if count == 1:
        return [low]
    at = [n / (count - 1) for n in range(count)]
    spaced = [low * (high / low) ** t if log else low + (high - low) * t for t in at]
    spaced[0], spaced[-1] = low, high
    return list(dict.fromkeys(round(v) for v in spaced)) if whole else spaced


def _number(text: str) -> int | float:
    text = text.replace("_", "")
    return float(text) if re.search(r"[.eE]", text) else int(text)


def crossed(axes: Sequence[Axis]) -> list[Choice]:
    """Every combination; the last field changes fastest."""
    _once(axes)
    size = math.prod(len(axis.values) for axis in axes)
    if size > MOST_POINTS:
        raise InputError(f"{size:,} points are more than {MOST_POINTS:,}", where="--vary")
    return [dict(zip([a.path for a in axes], v, strict=True)) for v in product(*(a.values for a in axes))]


def paired(axes: Sequence[Axis]) -> list[Choice]:
    """The first value of each field together, then the second; all have as many."""
    _once(axes)
    if len({len(axis.values) for axis in axes}) > 1:
        counts = ", ".join(f"{axis.path} has {len(axis.values)}" for axis in axes)
        raise InputError(f"pairs values, so fields have as many: {counts}", where="--paired")
    return [
        dict(zip([a.path for a in axes], values, strict=True))
        for values in zip(*(a.values for a in axes), strict=True)
    ]


def _once(axes: Sequence[Axis]) -> None:
    seen: set[str] = set()
    for axis in axes:
        if axis.path in seen:
            raise InputError("is varied twice", where=axis.place)
        seen.add(axis.path)


def read_csv(path: Path) -> list[Choice]:
    """A point a row; the header names the fields. Raises ``InputError`` naming file, line and column."""
    where = str(path)
    rows = list(csv.reader(io.StringIO(read_text(path))))
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise InputError("holds no points; a header of fields and a row a point are needed", where=where)
    header = [cell.strip() for cell in rows[0]]
    for index, name in enumerate(header):
        if not _PATH.fullmatch(name) or name in header[:index]:
            wrong = "stands there twice" if name in header[:index] else "is no field such as engine.tp"
            raise InputError(f"column {name!r} {wrong}", where=f"{where}:1")
    found: list[Choice] = []
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"has {len(row)} cells and the header {len(header)}", where=f"{where}:{line}")
        choice: Choice = {}
        for name, cell in zip(header, row, strict=True):
            value = parse_yaml(cell, where=f"{where}:{line}: {name}")
            if value is None:
                raise InputError("is empty", where=f"{where}:{line}: {name}")
            choice[name] = value
        found.append(choice)
    return found


def combined(grid: Sequence[Choice], rows: Sequence[Choice]) -> list[Choice]:
    """Each row with each point of the grid; either may be empty."""
    if not rows or not grid:
        return list(rows or grid)
    if both := set(rows[0]) & set(grid[0]):
        raise InputError(f"{min(both)} is a column of the CSV file, too", where="--vary")
    return [{**row, **choice} for row in rows for choice in grid]
