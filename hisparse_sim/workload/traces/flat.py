"""Traces with a row a request: checked, cut, repeated, stretched and handed on as sessions.

Memory holds one batch of rows, however long the file; what grows is only what the names of sessions need
where requests wait for each other.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.workload.request import Session
from hisparse_sim.workload.traces.batch import BadLines, Batch, Checker, Mask
from hisparse_sim.workload.traces.bench_result import bench_clients, read_bench_result
from hisparse_sim.workload.traces.blocks import read_head, read_start
from hisparse_sim.workload.traces.formats import Layout, find_layout
from hisparse_sim.workload.traces.lines import read_json_lines, read_table
from hisparse_sim.workload.traces.parquet import parquet_layout, read_parquet
from hisparse_sim.workload.traces.played import sessions_of

Reader = Callable[[], Iterator[Batch]]


class FlatTrace:
    """The requests of a file, each its own session or, in a saved workload, sessions as they were.

    With ``check`` the file is read through once here, so that whatever is wrong with it is said first.
    """

    def __init__(
        self,
        spec: TraceSpec,
        reader: Reader,
        checker: Callable[[BadLines], Checker],
        *,
        layout: Layout | None,
        concurrency: int | None,
        check: bool,
        line: str = ":",
    ) -> None:
        self.spec = spec
        self.concurrency = spec.concurrency or concurrency
        meta: Mapping[str, Any] = layout.meta if layout else {}
        limits = [spec.limit] if layout is not None and layout.played else []
        self.limit: int | None = min((n for n in (*limits, meta.get("limit")) if n is not None), default=None)
        self.about = {key: meta[key] for key in ("source", "seed") if key in meta}
        """Where a saved workload came from."""
        self.layout = layout
        self.notes: list[str] = []
        self._reader = reader
        self._checker = checker
        self._requests: int | None = None
        self._place = f"{spec.path}{line}"
        if check and layout is not None and layout.played:
            deque(sessions_of(self._counted(), spec.path, layout, self._place), maxlen=0)
        elif check:
            deque(self._counted(), maxlen=0)

    @property
    def in_batches(self) -> bool:
        """Whether the columns say all; else only ``sessions`` know who waits for whom and what is said."""
        fields: Mapping[str, str] = self.layout.fields if self.layout else {}
        return not {"after", "segments", "kept_ids", "block_tokens", "tags"} & set(fields)

    def expected_requests(self, sessions: int, requests: int) -> int | None:
        """Known when the file was checked."""
        return self._requests

    def sessions(self) -> Iterator[Session]:
        """The sessions, in the order of the file."""
        return sessions_of(self.batches(), self.spec.path, self.layout, self._place)

    def batches(self) -> Iterator[Batch]:
        """The requests that are sent, with the times they are sent at."""
        spec, left = self.spec, self.spec.limit if self.limit is None else None
        for batch in self._repeated():
            if spec.time_scale != 1.0:
                batch.arrival_s = batch.arrival_s * spec.time_scale
                if "delay_s" in batch.more:
                    delays_s = batch.numbers("delay_s", np.float64) * spec.time_scale
                    batch.more["delay_s"] = delays_s.tolist()
            if left is not None:
                batch = batch.take(np.arange(min(left, len(batch))))
                left -= len(batch)
            yield batch
            if left == 0:
                return

    def _repeated(self) -> Iterator[Batch]:
        """Copy after copy; each starts where the next request would have come."""
        count, first_s, last_s = 0, 0.0, 0.0
        for copy in range(self.spec.repeat):
            gap_s = (last_s - first_s) / (count - 1) if count > 1 else 0.0
            shift_s = copy * (last_s - first_s + gap_s)
            for batch in self._cut():
                if not copy and len(batch):
                    first_s = float(batch.arrival_s[0]) if not count else first_s
                    last_s, count = float(batch.arrival_s[-1]), count + len(batch)
                if copy:
                    batch.copy = copy
                    batch.arrival_s = batch.arrival_s + shift_s
                yield batch

    def _counted(self) -> Iterator[Batch]:
        """All that is in the file, counting what of it is sent."""
        spec, count = self.spec, 0
        for batch in self._checked():
            count += int(self._inside(batch).sum()) if spec.from_s or spec.to_s is not None else len(batch)
            yield batch
        count *= spec.repeat
        limit = spec.limit if self.limit is None else self.limit
        self._requests = count if limit is None else min(count, limit)

    def _inside(self, batch: Batch) -> Mask:
        from_s, to_s = self.spec.from_s, self.spec.to_s
        after: Mask = batch.arrival_s >= from_s
        return after & (batch.arrival_s < (np.inf if to_s is None else to_s))

    def _cut(self) -> Iterator[Batch]:
        from_s, to_s = self.spec.from_s, self.spec.to_s
        kept = 0
        for batch in self._checked():
            if from_s or to_s is not None:
                if np.any(np.isnan(batch.arrival_s)):
                    raise InputError(
                        "requests without times of arrival cannot be cut by time",
                        where=f"{self._place}{batch.lines[0]}",
                    )
                done = to_s is not None and len(batch) > 0 and batch.arrival_s[-1] >= to_s
                batch = batch.take(np.flatnonzero(self._inside(batch)))
                batch.arrival_s = batch.arrival_s - from_s
            else:
                done = False
            kept += len(batch)
            yield batch
            if done:
                break
        if not kept:
            raise InputError("no request arrives between from_s and to_s", where="workload.from_s")

    def _checked(self) -> Iterator[Batch]:
        if self.spec.skip_bad_lines and self.layout and {"kept_ids", "after"} & set(self.layout.fields):
            raise InputError(
                "lines of this file refer to those above them; without one, what follows would mean"
                " something else",
                where="workload.skip_bad_lines",
            )
        bad = BadLines(self._place, self.spec.skip_bad_lines)
        checker = self._checker(bad)
        found = False
        try:
            for batch in self._reader():
                batch = checker.check(batch)
                found = found or len(batch) > 0
                yield batch
        finally:
            if len(bad.notes()) >= len(self.notes):
                self.notes = bad.notes()
        if not found:
            raise InputError("holds no requests", where=str(self.spec.path))


def is_document(path: Path) -> bool:
    """Whether a file is one JSON object as a whole, and not lines or a table."""
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix in ("jsonl", "ndjson", "csv", "parquet") or _is_parquet(path):
        return False
    if (start := read_start(path, 4096).lstrip()[:1]) != b"{":
        return suffix == "json" and start != b"["
    first, _, rest = read_head(path).lstrip().partition(b"\n")
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return True
    whole = suffix == "json" and not rest.strip()
    return whole or not isinstance(row, dict) or "input_lens" in row or "requests" in row


def open_file(spec: TraceSpec, *, check: bool) -> FlatTrace:
    """A file of lines or a Parquet file. Raises InputError."""
    path = spec.path
    parquet = _is_parquet(path)
    layout = parquet_layout(path, spec.format) if parquet else find_layout(path, spec.format)
    timed = "arrival_s" in layout.fields
    concurrency = layout.meta.get("concurrency")
    if not timed and not layout.played and not spec.concurrency:
        names = " or ".join(layout.format.names["arrival_s"][:3])
        raise InputError(
            f"no times of arrival; {layout.format.name} calls them {names}. To send one request after the"
            " other, say how many at a time (concurrency)",
            where=f"{path}:{max(1, layout.first_line - 1)}",
        )

    def checker(bad: BadLines) -> Checker:
        return Checker(
            bad,
            block_tokens=layout.format.block_tokens,
            from_first=layout.from_first,
            timed=timed and not layout.played,
            unit_s=layout.format.unit_s if layout.from_first else 1.0,
            played=layout.played,
        )

    def reader() -> Iterator[Batch]:
        if parquet:
            return read_parquet(path, layout.fields)
        if layout.header is not None:
            return read_table(path, layout.header, layout.fields)
        return read_json_lines(path, layout.fields, first_line=layout.first_line)

    return FlatTrace(
        spec,
        reader,
        checker,
        layout=layout,
        concurrency=concurrency,
        check=check,
        line=": row " if parquet else ":",
    )


def open_bench_result(spec: TraceSpec, result: Mapping[str, Any], *, check: bool) -> FlatTrace:
    """The requests of a benchmark. Raises InputError."""
    timed = bool(result.get("start_times"))

    def checker(bad: BadLines) -> Checker:
        return Checker(bad, block_tokens=None, from_first=True, timed=timed, unit_s=1.0)

    return FlatTrace(
        spec,
        lambda: read_bench_result(spec.path, result),
        checker,
        layout=None,
        concurrency=bench_clients(result),
        check=check,
        line=": request ",
    )


def _is_parquet(path: Path) -> bool:
    return read_start(path, 4) == b"PAR1"
