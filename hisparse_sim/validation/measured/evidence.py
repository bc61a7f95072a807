"""What one input of the user's says, in the units of this package; files read as text, damage named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.yaml_file import check_regular

POINTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Percentiles that a figure may be of."""


@dataclass(slots=True)
class Evidence:
    """Figures by their names in ``simulated.py`` and settings by their engine fields.

    ``kind``: bench, metrics or log. ``notes`` say how figures are to be taken; ``problems`` are what of the
    input could not be used (exit code 2), beside what could.
    """

    kind: str
    path: str
    figures: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_measured(path: Path) -> tuple[str, list[str]]:
    """The text of ``path``, and what is wrong with it (bytes that are not UTF-8, each replaced).

    A byte-order mark of UTF-16, which PowerShell's ``>`` writes, is understood. Raises InputError if the
    file cannot be read or is empty.
    """
    where = str(path)
    try:
        check_regular(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=where) from None
    if not data.strip():
        raise InputError("is empty", where=where)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace"), []
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        if b"\0" in data[:4096]:
            raise InputError("is no text (it holds NUL bytes)", where=where) from None
        text = data.decode("utf-8", errors="replace")
        lines = sum("\ufffd" in piece for piece in text.split("\n"))
        many = f"{lines} lines hold" if lines > 1 else "a line holds"
        return text, [
            f"{where}:{line}: {many} bytes that are not UTF-8; they were replaced, the rest is used"
        ]


def spread(name: str, values: Iterable[float | None]) -> dict[str, float]:
    """``name_mean``, ``name_p50`` … of what is defined; percentiles interpolate linearly."""
    import numpy as np

    found = np.array([v for v in values if v is not None], dtype=float)
    if not len(found):
        return {}
    points = np.percentile(found, [100 * q for q in POINTS.values()])
    named = {f"{name}_{point}": float(v) for point, v in zip(POINTS, points, strict=True)}
    return {f"{name}_mean": float(found.mean()), **named}
