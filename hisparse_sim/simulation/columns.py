"""Requests and steps of a run as columns, a piece at a time: what the Parquet files hold.

A run of a million steps is never one list of objects: full pieces of steps become arrays as they come,
and files are written piece by piece. Pieces end after so many rows, whenever they are made, so the same
run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulation.recorder import RequestRecord, StepRow
from hisparse_sim.simulation.served import e2e_s, tpot_s, ttft_s

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 16
"""Rows of a piece, which is a row group of the file."""

Columns = dict[str, npt.NDArray[Any]]
"""A piece of the steps, one array a field of ``StepRow``."""

_SECONDS_AND_BYTES = ("start_s", "end_s", "h2d_bytes", "d2h_bytes")


def columns_of(rows: Sequence[StepRow]) -> Columns:
    """Rows as arrays, of int64 or float64."""
    return {
        name: np.fromiter(
            map(attrgetter(name), rows),
            np.float64 if name in _SECONDS_AND_BYTES else np.int64,
            count=len(rows),
        )
        for name in StepRow.__slots__
    }


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

    def pieces(self) -> Iterator[Columns]:
        """The packed ones, and the rest."""
        self.pack()
        yield from self._packed
        if self._rows or not self._packed:
            yield columns_of(self._rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One field of all rows."""
        return np.concatenate([piece[name] for piece in self.pieces()])


def step_tables(steps: StepLog) -> Iterator[pa.Table]:
    """``steps.parquet``, piece by piece."""
    import pyarrow as pa

    for piece in steps.pieces():
        table = pa.table(piece)
        count = pa.array(piece["last_step"] - piece["first_step"] + 1)
        yield table.add_column(table.column_names.index("running"), "steps", count)


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
}
"""Of ``requests.parquet``: the type in pandas, and the value of a record."""


def request_tables(records: Sequence[RequestRecord], under_way: str) -> Iterator[pa.Table]:
    """``requests.parquet``, piece by piece; ``under_way``: the reason why a request is incomplete."""
    import pandas as pd
    import pyarrow as pa

    empty = pd.DataFrame({name: pd.Series([], dtype=kind) for name, (kind, _) in REQUEST_COLUMNS.items()})
    # So that pandas reads its own types again; it is not asked for its Arrow types, which are larger.
    metadata = pa.Schema.from_pandas(empty, preserve_index=False).metadata
    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "Int64": pa.int64(),
        "float64": pa.float64(),
        "object": pa.list_(pa.float64()),
    }
    schema = pa.schema([(name, types[kind]) for name, (kind, _) in REQUEST_COLUMNS.items()], metadata)
    for start in range(0, max(len(records), 1), PIECE_ROWS):
        piece = records[start : start + PIECE_ROWS]
        arrays = {
            name: pa.array(list(map(of, piece)), schema.field(name).type)
            for name, (_, of) in REQUEST_COLUMNS.items()
            if name != "reason"
        }
        arrays["reason"] = pa.array([under_way if r.status == "incomplete" else r.reason for r in piece])
        yield pa.table(arrays, schema)


def write_tables(path: Path, tables: Iterable[pa.Table]) -> None:
    """A Parquet file with one row group a table, of which there is at least one."""
    import pyarrow.parquet as pq

    remaining = iter(tables)
    first = next(remaining)
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in chain((first,), remaining):
            writer.write_table(table, row_group_size=PIECE_ROWS)
