"""Traces that are lines: JSON objects, or a table of comma-separated values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hisparse_sim.workload.traces.arrow_lane import Lane, json_lane, table_lane
from hisparse_sim.workload.traces.batch import Batch
from hisparse_sim.workload.traces.blocks import Block, cells_of, pieces_of, read_blocks, text_of
from hisparse_sim.workload.traces.rows import Rows

Getter = Callable[[str], Any]


def read_json_lines(path: Path, fields: Mapping[str, str], *, first_line: int = 1) -> Iterator[Batch]:
    """Requests of a file with one JSON object a line, from ``first_line`` on; names may be dotted.

    Lines that are no such object are among a batch's ``problems``. Raises InputError.
    """
    return _read(path, fields, first_line, _json_row, lambda line: json_lane(line, fields))


def read_table(path: Path, header: Sequence[str], fields: Mapping[str, str]) -> Iterator[Batch]:
    """Requests of a table with ``header`` in its first line."""

    def row(text: str) -> Getter:
        values = cells_of(text)
        if len(values) != len(header):
            raise ValueError(f"has {len(values)} columns, where the header has {len(header)}")
        return dict(zip(header, (None if value == "null" else value for value in values), strict=True)).get

    return _read(path, fields, 2, row, lambda line: table_lane(line, header, fields))


def dotted(row: Mapping[str, Any], name: str) -> Any:
    """``row["usage"]["prompt_tokens"]`` for ``usage.prompt_tokens``; none if there is no such thing."""
    value: Any = row.get(name)
    if value is None and "." in name:
        value = row
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _json_row(text: str) -> Getter:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not a whole JSON object: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply to be a request") from None
    if not isinstance(row, dict):
        raise ValueError("must be a JSON object with the fields of a request")
    return lambda name: dotted(row, name)


def _read(
    path: Path,
    fields: Mapping[str, str],
    first_line: int,
    row: Callable[[str], Getter],
    learn: Callable[[bytes], Lane | None],
) -> Iterator[Batch]:
    lane: Lane | None = None

    def quickly(block: Block) -> Batch | None:
        nonlocal lane
        lane = lane or learn(block.text.split(b"\n", 1)[0])
        batch = lane(block) if lane else None
        if batch is None:
            lane = None  # what follows may look otherwise
        return batch

    def read(block: Block) -> list[Batch]:
        if (batch := quickly(block)) is not None:
            return [batch]
        # Only the pieces with something odd in them are read line by line.
        pieces = [(piece, quickly(piece)) for piece in pieces_of(block)]
        return [_line_by_line(piece, fields, row) if got is None else got for piece, got in pieces]

    # A block is read while the one before it is being worked on: Arrow needs no interpreter.
    with ThreadPoolExecutor(max_workers=1) as ahead:
        pending: Future[list[Batch]] | None = None
        for block in read_blocks(path):
            block = _from_line(block, first_line)
            if not block.text:
                continue
            following = ahead.submit(read, block)
            if pending is not None:
                yield from pending.result()
            pending = following
        if pending is not None:
            yield from pending.result()


def _from_line(block: Block, line: int) -> Block:
    """The block without the lines before ``line``."""
    while block.line < line and block.text:
        end = block.text.find(b"\n") + 1 or len(block.text)
        block = Block(block.line + 1, block.text[end:])
    return block


def _line_by_line(block: Block, fields: Mapping[str, str], row: Callable[[str], Getter]) -> Batch:
    rows = Rows(fields)
    problems: list[tuple[int, str]] = []
    for number, line in enumerate(block.text.split(b"\n"), block.line):
        if not line.strip():
            continue
        try:
            rows.add(number, row(text_of(line)))
        except ValueError as error:
            problems.append((number, str(error)))
    batch = rows.batch()
    batch.problems = problems
    return batch
