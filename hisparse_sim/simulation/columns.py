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
from hisparse_sim.simulation.recorder import RequestRecord, StepRow
from hisparse_sim.simulation.served import e2e_s, tpot_s, ttft_s

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 16
"""Rows of a piece, which is a row group of the file."""

Columns = dict[str, npt.NDArray[Any]]
"""A piece of the steps, one array a field of ``StepRow``."""

_SECONDS_AND_BYTES = ("start_s", "end_s", "h2d_bytes", "d2h_bytes")


def columns_of(rows: Sequence[StepRow], names: Sequence[str] = StepRow.__slots__) -> Columns:
    """These fields of rows as arrays, of int64 or float64."""
    kinds = {name: np.float64 if name in _SECONDS_AND_BYTES else np.int64 for name in names}
    return {name: np.fromiter(map(attrgetter(name), rows), kinds[name], count=len(rows)) for name in names}


class StepLog:
    """All steps of a run so far: pieces packed into arrays, and the ``rows`` that the recorder appends to."""

    def __init__(self, rows: list[StepRow]) -> None:
        self._rows = rows
        self._packed: list[Columns] = []

    def pack(self) -> None:
        """Turn full pieces into arrays. The last row always stays: the next step may join it."""
        while len(self._rows) > PIECE_ROWS:
            self._packed.append(columns_of(self._rows[:PIECE_ROWS]))
            del self._rows[:PIECE_ROWS]

    def pieces(self, names: Sequence[str] = StepRow.__slots__) -> Iterator[Columns]:
        """The packed ones, and the rest, which has these fields."""
        self.pack()
        yield from self._packed
        if self._rows or not self._packed:
            yield columns_of(self._rows, names)

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
            columns[name] = numbers(values, np.float64 if name in _SECONDS_AND_BYTES else np.int64)
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
