"""Rows of a trace, one at a time, made into columns: what each field may hold, and what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hisparse_sim.scenario.workload import MAX_COUNT, MAX_S
from hisparse_sim.workload.traces.batch import Batch, IdLists

MAX_CLOCK = 1e19
"""No clock shows more: nanoseconds since 1970 have 19 digits, and begin with 1 or 2."""
YEARS = (1970, 2200)
"""Of dates."""
NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
"""Columns of their own in a batch; all other fields may be left out."""


def whole(value: Any) -> int:
    """A whole number. Raises ValueError."""
    if type(value) is int and -MAX_COUNT <= value <= MAX_COUNT:
        return value
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = _float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it must be a whole number")
    if not abs(value) <= MAX_COUNT:  # NaN, too
        raise ValueError(f"it must be a whole number of at most {MAX_COUNT:,}")
    if value != math.floor(value):
        raise ValueError("it must be a whole number")
    return int(value)


def number(value: Any) -> float:
    """A finite number. Raises ValueError."""
    if isinstance(value, str):
        value = _float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it must be a number")
    if not abs(value) < MAX_CLOCK:  # NaN, too
        raise ValueError("it must be a finite number of less than 20 digits")
    return float(value)


def clock(value: Any) -> float:
    """A time: a number, or text as 2023-11-16 18:17:03.97 in seconds since 1970. Raises ValueError."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return from_iso(value)
    return number(value)


def from_iso(text: str) -> float:
    """Seconds since 1970 of a date and time; UTC where it names no zone. Raises ValueError."""
    text = text.strip()
    try:
        if len(text) < len("2023-11-16"):  # a year alone would be a time, too
            raise ValueError(text)
        at = datetime.fromisoformat(text)
        if not YEARS[0] <= at.year <= YEARS[1]:
            raise ValueError(text)
    except ValueError:
        raise ValueError("it must be a number or a time such as 2023-11-16 18:17:03.97") from None
    if at.tzinfo is None:
        return int(np.datetime64(text, "ns").astype(np.int64)) / 1e9  # with all its digits
    return at.astimezone(UTC).timestamp()


def pause(value: Any) -> float:
    """Seconds >= 0. Raises ValueError."""
    if not 0 <= (seconds := number(value)) <= MAX_S:
        raise ValueError(f"it must be a number of seconds >= 0 and at most {MAX_S:g}")
    return seconds


def text(value: Any) -> str:
    """Text, or a number as text. Raises ValueError."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and _is_whole(str(value)):
        return str(value)
    raise ValueError("it must be text")


def _is_whole(text: str) -> bool:
    """Not with half of a surrogate pair, which JSON can escape and no file can hold."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def id_list(value: Any) -> list[int]:
    """A list of whole numbers. Raises ValueError."""
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        least, most = min(value, default=0), max(value, default=0)
        if least >= -(2**63) and most < 2**64:
            return value
    raise ValueError("it must be a list of whole numbers of 64 bits")


def names(value: Any) -> list[str]:
    """A list of texts; in a table, words. Raises ValueError."""
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list) and all(isinstance(name, str) and _is_whole(name) for name in value):
        return value
    raise ValueError("it must be a list of ids")


def pieces(value: Any) -> list[Any]:
    """A list of [stream, first token, tokens]; in Parquet, of structs. Raises ValueError."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = [[piece.get(name) for name in ("stream", "start", "length")] for piece in value]
    if not isinstance(value, list) or not all(_is_piece(piece) for piece in value):
        raise ValueError("it must be a list of [stream, first token, tokens]")
    return value


def tags(value: Any) -> dict[str, str]:
    """A mapping of texts, or the JSON of one. Raises ValueError."""
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, dict):
        parts = [part for pair in value.items() for part in pair]
        if all(isinstance(part, str) and _is_whole(part) for part in parts):
            return value
    raise ValueError("it must be a mapping of texts")


KINDS: dict[str, Callable[[Any], Any]] = {
    "arrival_s": clock,
    "prompt_tokens": whole,
    "output_tokens": whole,
    "id": text,
    "session": text,
    "priority": whole,
    "tenant": text,
    "prefix_group": text,
    "prefix_tokens": whole,
    "hash_ids": id_list,
    "block_tokens": whole,
    "kept_ids": whole,
    "scope": text,
    "segments": pieces,
    "after": names,
    "delay_s": pause,
    "tags": tags,
}
"""Every field of a trace, and how its values are read."""


class Rows:
    """Collects rows; ``fields`` gives the name that each field has in the file."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = [(field, name, KINDS[field]) for field, name in fields.items()]
        self._columns: dict[str, list[Any]] = {field: [] for field in fields}
        self._lines: list[int] = []

    def add(self, line: int, get: Callable[[str], Any]) -> None:
        """Take a row, whose values ``get`` gives by name. Raises ValueError; the row is then left out."""
        values: list[Any] = []
        for field, name, kind in self._fields:
            value = get(name)
            if value is None or value == "":
                if field in NEEDED[1:]:
                    raise ValueError(f"'{name}' is missing")
                values.append(None)
                continue
            try:
                values.append(kind(value))
            except ValueError as error:
                raise ValueError(f"'{name}' is {_shown(value)}; {error}") from None
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._lines.append(line)

    def batch(self) -> Batch:
        """The rows so far as columns."""
        count, columns = len(self._lines), dict(self._columns)
        arrivals = columns.pop("arrival_s", [None] * count)
        return Batch(
            np.array(self._lines, dtype=np.int64),
            np.array([math.nan if at is None else at for at in arrivals], dtype=np.float64),
            np.array(columns.pop("prompt_tokens"), dtype=np.int64),
            np.array(columns.pop("output_tokens"), dtype=np.int64),
            id_lists(columns.pop("hash_ids")) if "hash_ids" in columns else None,
            columns,
        )


def id_lists(lists: list[list[int] | None]) -> IdLists:
    """Lists one behind the other; ids of 64 bits without a sign keep their bits."""
    known = [ids or [] for ids in lists]
    flat = [i if i < 2**63 else i - 2**64 for ids in known for i in ids]
    return IdLists(np.array(flat, dtype=np.int64), np.cumsum([len(ids) for ids in known], dtype=np.int64))


def _is_piece(piece: Any) -> bool:
    if not isinstance(piece, list) or len(piece) != 3:
        return False
    if not isinstance(piece[0], str) or not _is_whole(piece[0]):
        return False
    return all(type(part) is int and 0 <= part <= MAX_COUNT for part in piece[1:])


def _float(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError("it must be a number") from None


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
