"""Traces in Parquet files: the columns of the plain format, or any other's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
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
    first = 1
    try:
        for part in _open(path).iter_batches(batch_size=_ROWS, columns=list(fields.values())):
            columns = {name: _plain(part.column(name).to_pylist()) for name in fields.values()}
            rows = Rows(fields)
            problems: list[tuple[int, str]] = []
            for index in range(len(part)):
                try:
                    rows.add(first + index, {name: column[index] for name, column in columns.items()}.get)
                except ValueError as error:
                    problems.append((first + index, str(error)))
            batch = rows.batch()
            batch.problems = problems
            yield batch
            first += len(part)
    except OSError as error:
        raise InputError(f"cannot be read from row {first} on: {error}", where=str(path)) from None


def _plain(values: list[Any]) -> list[Any]:
    """Times of Arrow as text; tags of a map as a mapping."""
    if any(hasattr(value, "isoformat") for value in values[:1]):
        return [None if value is None else value.isoformat(sep=" ") for value in values]
    return values


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is not a whole Parquet file: {error}", where=str(path)) from None
