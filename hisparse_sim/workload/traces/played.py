"""From rows to sessions: who waits for whom, and what prompts have in common.

A row without more is a session of its own at its time. Where the file has ``delay_s`` or ``after``, rows
of one ``session`` that follow each other are played as one: each starts ``delay_s`` after the requests it
names in ``after`` (or the one above it) have finished.

What a request says is told by, in this order: ``segments``; ``hash_ids``, before which come ``kept_ids`` of
the row above; else ``prefix_tokens`` that all of its ``prefix_group`` begin with, and then the ``session``,
in which a later prompt repeats all that was said before. Without any, nobody else says the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.workload.lengths import Ints
from hisparse_sim.workload.request import BlockHashes, Content, RequestSpec, Segment, Session
from hisparse_sim.workload.traces.batch import Batch
from hisparse_sim.workload.traces.formats import Layout

_SMALL_IDS = 2**20
"""Block ids below are used as they are; others, such as hashes of 64 bits, are numbered from here on, so
that whoever keeps a table of ids needs no more room than there are ids."""


def sessions_of(batches: Iterator[Batch], path: Path, layout: Layout | None) -> Iterator[Session]:
    """The sessions of a trace, in the order of its rows. Raises InputError naming file and line."""
    name = path.name.split(".")[0]
    rows = _Rows(path, name, layout)
    if layout is None or not layout.played:
        for batch in batches:
            for index in range(len(batch)):
                request = rows.request(batch, index, (), 0.0)
                start_s = float(batch.arrival_s[index])
                yield Session(
                    id=request.id,
                    requests=(request,),
                    start_s=None if math.isnan(start_s) else start_s,
                    tags=_tags(batch, index, "session"),
                )
        return
    group: _Group | None = None
    for batch in batches:
        for index in range(len(batch)):
            session = rows.session(batch, index)
            if group is None or group.id != session:
                if group is not None:
                    yield group.session()
                group = _Group(session, batch, index)
            group.add(rows, batch, index)
    if group is not None:
        yield group.session()


class _Group:
    """Rows of one session."""

    def __init__(self, name: str, batch: Batch, index: int) -> None:
        self.id = name
        start_s = float(batch.arrival_s[index])
        self._start_s = None if math.isnan(start_s) else start_s
        self._tags = _tags(batch, index)
        self._requests: dict[str, RequestSpec] = {}

    def add(self, rows: _Rows, batch: Batch, index: int) -> None:
        """Take the next row."""
        suffix = _suffix(batch)
        after = _value(batch, "after", index)
        if after is None:
            after = list(self._requests)[-1:]
        else:
            after = [name + suffix for name in after]
            if unknown := [name for name in after if name not in self._requests]:
                raise InputError(
                    f"follows {unknown[0]!r}, which is not above it in its session",
                    where=f"{rows.path}:{batch.lines[index]}",
                )
        request = rows.request(batch, index, tuple(after), _value(batch, "delay_s", index) or 0.0)
        self._requests[request.id] = request

    def session(self) -> Session:
        """All rows so far."""
        return Session(self.id, tuple(self._requests.values()), self._start_s, self._tags)


class _Rows:
    """Makes requests of rows."""

    def __init__(self, path: Path, name: str, layout: Layout | None) -> None:
        self.path = path
        self._name = name
        self._block_tokens = layout.format.block_tokens if layout else None
        self._numbers: dict[int, int] = {}
        self._above: Ints = np.zeros(0, dtype=np.int64)

    def session(self, batch: Batch, index: int) -> str:
        """The name of the row's session; a row without one is alone."""
        name = _value(batch, "session", index) or _value(batch, "id", index)
        return (name or f"{self._name}/{batch.lines[index]}") + _suffix(batch)

    def request(self, batch: Batch, index: int, after: tuple[str, ...], delay_s: float) -> RequestSpec:
        """The request of a row."""
        name = _value(batch, "id", index)
        if name is None:
            name = f"{_value(batch, 'session', index) or self._name}/{batch.lines[index]}"
        return RequestSpec(
            id=name + _suffix(batch),
            prompt_tokens=int(batch.prompt_tokens[index]),
            output_tokens=int(batch.output_tokens[index]),
            content=self._content(batch, index),
            after=after,
            delay_s=delay_s,
            priority=_value(batch, "priority", index) or 0,
        )

    def _content(self, batch: Batch, index: int) -> Content:
        suffix = _suffix(batch)
        if (segments := _value(batch, "segments", index)) is not None:
            return tuple(Segment(stream + suffix, start, length) for stream, start, length in segments)
        if batch.ids is not None and (self._block_tokens or _value(batch, "block_tokens", index)):
            return self._hashes(batch, index, suffix)
        total = int(batch.prompt_tokens[index] + batch.output_tokens[index])
        shared = min(_value(batch, "prefix_tokens", index) or 0, int(batch.prompt_tokens[index]))
        content: list[Segment] = []
        if shared:
            content.append(Segment(f"prefix/{_value(batch, 'prefix_group', index) or ''}{suffix}", 0, shared))
        if session := _value(batch, "session", index):
            content.append(Segment(f"session/{session}{suffix}", shared, total - shared))
        return tuple(content)

    def _hashes(self, batch: Batch, index: int, suffix: str) -> BlockHashes:
        assert batch.ids is not None
        ids = batch.ids.of(index)
        large = (ids < 0) | (ids >= _SMALL_IDS)
        if np.any(large):
            numbers = self._numbers
            ids = ids.copy()
            ids[large] = [numbers.setdefault(i, _SMALL_IDS + len(numbers)) for i in ids[large].tolist()]
        if kept := _value(batch, "kept_ids", index):
            if kept > len(self._above):
                raise InputError(
                    f"keeps {kept} ids of the row above, which has {len(self._above)}",
                    where=f"{self.path}:{batch.lines[index]}",
                )
            ids = np.concatenate((self._above[:kept], ids))
        self._above = ids
        scope = _value(batch, "scope", index) or self._name
        return BlockHashes(scope + suffix, ids, self._block_tokens or _value(batch, "block_tokens", index))


def _value(batch: Batch, field: str, index: int) -> Any:
    column = batch.more.get(field)
    return None if column is None else column[index]


def _tags(batch: Batch, index: int, *more: str) -> dict[str, str]:
    """The row's own tags, and those that are columns."""
    found: dict[str, str] = _value(batch, "tags", index) or {}
    columns = {name: value for name in ("tenant", *more) if (value := _value(batch, name, index))}
    return found | columns if columns else found


def _suffix(batch: Batch) -> str:
    """What tells the names of a copy from those of the others."""
    return f"#{batch.copy + 1}" if batch.copy else ""
