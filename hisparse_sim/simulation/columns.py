"""Requests and steps of a run as columns, a piece at a time: what the Parquet files hold.

A run of a million steps is never one list of objects: full pieces of steps become arrays as they come,
and files are written piece by piece. Pieces end after so many rows, whenever they are made, so the same
run gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulation.arrow import lists, numbers, strings
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.rows import FIELDS, SECONDS_AND_BYTES, Floats, Rows
from hisparse_sim.simulation.served import e2e_s, tpot_s, ttft_s

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 16
"""Rows of a piece, which is a row group of the file."""

Columns = dict[str, npt.NDArray[Any]]
"""A piece of the steps, one array a field of ``rows.StepRow``."""


def _columns(rows: Floats, names: Sequence[str]) -> Columns:
    return {name: values.astype(_kind(name)) for name, values in zip(names, rows, strict=True)}


def _kind(name: str) -> type[np.int64] | type[np.float64]:
    return np.float64 if name in SECONDS_AND_BYTES else np.int64


class StepLog:
    """All steps of a run that are worked up so far, as pieces of the ``rows``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def pieces(self, names: Sequence[str] = FIELDS) -> Iterator[Columns]:
        """These fields."""
        fields = [FIELDS.index(name) for name in names]
        parts: list[Floats] = []
        rows = 0
        for table in (*self._rows.closed, self._rows.last):
            parts.append(table[fields])
            rows += table.shape[1]
            while rows > PIECE_ROWS:
                whole = np.concatenate(parts, axis=1)
                yield _columns(whole[:, :PIECE_ROWS], names)
                parts, rows = [whole[:, PIECE_ROWS:]], rows - PIECE_ROWS
        yield _columns(np.concatenate(parts, axis=1), names)

    def columns(self, *names: str) -> list[npt.NDArray[Any]]:
        """These fields of all rows."""
        pieces = list(self.pieces(names))
        return [np.concatenate([piece[name] for piece in pieces]) for name in names]


def step_batches(steps: StepLog) -> Iterator[pa.RecordBatch]:
    """``steps.parquet``, piece by piece."""
    import pyarrow as pa

    for piece in steps.pieces():
        columns = {}
        for name, values in piece.items():
            if name == "running":
                columns["steps"] = numbers(piece["last_step"] - piece["first_step"] + 1, np.int64)
            columns[name] = numbers(values, _kind(name))
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


REQUEST_COLUMNS: dict[str, tuple[str, Callable[[RequestRecord], Any]]] = {
    "request_id": ("string", attrgetter("id")),
    "session": ("string", attrgetter("session")),
    "tenant": ("string", lambda r: r.tenant or None),
    "priority": ("int64", attrgetter("priority")),
    **{
        name: ("float64", attrgetter(name))
        for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
    },
    "prompt_tokens": ("int64", attrgetter("prompt_tokens")),
    "output_tokens": ("int64", attrgetter("sampled")),
    "hit_tokens": ("Int64", attrgetter("hit_tokens")),
    "preemptions": ("int64", attrgetter("preemptions")),
    "status": ("string", attrgetter("status")),
    "ttft_s": ("float64", ttft_s),
    "tpot_s": ("float64", tpot_s),
    "e2e_s": ("float64", e2e_s),
    "itl_max_s": ("float64", attrgetter("itl_max_s")),
    "load_start_s": ("float64", attrgetter("load_start_s")),
    "load_end_s": ("float64", attrgetter("load_end_s")),
    "preempted_s": ("object", attrgetter("preempted_s")),
    "reason": ("string", attrgetter("reason")),
    "replica": ("int64", attrgetter("replica")),
}
"""Of ``requests.parquet``: the type in pandas, and the value of a record."""


def _for_pandas() -> dict[bytes, bytes]:
    """Metadata by which pandas reads the types of ``REQUEST_COLUMNS`` again.

    pandas itself would write it, but takes longer to import than a short run. Source: "Storing pandas
    DataFrame objects in Apache Parquet format" in its developer guide.
    """
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": kind, "metadata": None}
        for name, (kind, _) in REQUEST_COLUMNS.items()
    ]
    what = {"index_columns": [], "column_indexes": [], "columns": columns, "pandas_version": "2.0.0"}
    return {b"pandas": json.dumps(what).encode()}


def request_batches(records: Sequence[RequestRecord], under_way: str) -> Iterator[pa.RecordBatch]:
    """``requests.parquet``, piece by piece; ``under_way``: the reason why a request is incomplete."""
    import pyarrow as pa

    make: dict[str, tuple[pa.DataType, Callable[[Sequence[Any]], pa.Array]]] = {
        "string": (pa.string(), strings),
        "int64": (pa.int64(), lambda values: numbers(values, np.int64)),
        "Int64": (pa.int64(), lambda values: numbers(values, np.int64)),
        "float64": (pa.float64(), lambda values: numbers(values, np.float64)),
        "object": (pa.list_(pa.float64()), lists),
    }
    fields = [(name, make[kind][0]) for name, (kind, _) in REQUEST_COLUMNS.items()]
    schema = pa.schema(fields, _for_pandas())
    for start in range(0, max(len(records), 1), PIECE_ROWS):
        piece = records[start : start + PIECE_ROWS]
        columns = {name: list(map(of, piece)) for name, (_, of) in REQUEST_COLUMNS.items()}
        columns["reason"] = [under_way if r.status == "incomplete" else r.reason for r in piece]
        arrays = [make[kind][1](columns[name]) for name, (kind, _) in REQUEST_COLUMNS.items()]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_batches(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """A Parquet file with one row group a batch, of which there is at least one."""
    import pyarrow.parquet as pq

    remaining = iter(batches)
    first = next(remaining)
    with pq.ParquetWriter(path, first.schema) as writer:
        for batch in chain((first,), remaining):
            writer.write_batch(batch, row_group_size=PIECE_ROWS)
