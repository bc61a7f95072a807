"""Traces in Parquet files: the columns of the plain format, or any other's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.workload.traces.arrow_lane import batch_of
from hisparse_sim.workload.traces.batch import Batch
from hisparse_sim.workload.traces.formats import PLAIN_HEADER, Layout, layout_of
from hisparse_sim.workload.traces.rows import Rows

_ROWS = 8192
META = b"hisparse-sim"
"""Key of the file's metadata that holds what the first line of a saved .jsonl says."""


def parquet_layout(path: Path, asked: str | None) -> Layout:
    """Which columns hold what. Raises InputError."""
    schema = _open(path).schema_arrow
    try:
        meta = json.loads((schema.metadata or {}).get(META, b"{}"))
    except ValueError:
        meta = {}
    if meta and meta.get("format") != PLAIN_HEADER:
        raise InputError(
            f"format is {meta.get('format')!r}; this version reads {PLAIN_HEADER}", where=str(path)
        )
    return layout_of(path, dict.fromkeys(schema.names), asked, meta=meta)


def read_parquet(path: Path, fields: Mapping[str, str]) -> Iterator[Batch]:
    """Requests of the file, some thousand at a time. A "line" is the number of a row, from 1."""
    import pyarrow as pa

    first = 1
    try:
        for part in _open(path).iter_batches(batch_size=_ROWS, columns=list(fields.values())):
            columns = {field: part.column(name) for field, name in fields.items()}
            lines = np.arange(first, first + len(part), dtype=np.int64)
            try:
                batch = batch_of(lines, columns, fields)
            except (pa.ArrowException, ValueError):
                batch = _row_by_row(first, columns, fields)
            yield batch
            first += len(part)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot be read from row {first} on: {error}", where=str(path)) from None


def _row_by_row(first: int, columns: Mapping[str, Any], fields: Mapping[str, str]) -> Batch:
    """What has anything odd in it, or is not of columns that Arrow holds as they are."""
    rows = Rows(fields)
    problems: list[tuple[int, str]] = []
    values = {fields[field]: _plain(column.to_pylist()) for field, column in columns.items()}
    for index in range(len(columns["prompt_tokens"])):
        try:
            rows.add(first + index, {name: column[index] for name, column in values.items()}.get)
        except ValueError as error:
            problems.append((first + index, str(error)))
    batch = rows.batch()
    batch.problems = problems
    return batch


def _plain(values: list[Any]) -> list[Any]:
    """Dates as text, spans of time in seconds, decimals as the numbers they are."""
    return [_PLAIN[type(value)](value) if type(value) in _PLAIN else value for value in values]


def _decimal(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


_PLAIN: dict[type, Callable[[Any], Any]] = {
    datetime: str,
    date: str,
    timedelta: timedelta.total_seconds,
    Decimal: _decimal,
}


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is not a whole Parquet file: {error}", where=str(path)) from None
