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
from hisparse_sim.workload.remembered import RecentNumbers
from hisparse_sim.workload.request import BlockHashes, Content, RequestSpec, Segment, Session
from hisparse_sim.workload.traces.batch import Batch, IdLists
from hisparse_sim.workload.traces.formats import Layout

_SMALL_IDS = 2**20
"""Block ids below are used as they are; others, such as hashes of 64 bits, are numbered from here on, so
that whoever keeps a table of ids needs no more room than there are ids."""
_NUMBERED_IDS = 2**21
"""So many of the large ids keep their numbers: at 16 tokens each, more than any node caches. One that comes
again after that many others is a new one."""


def sessions_of(batches: Iterator[Batch], path: Path, layout: Layout | None, place: str) -> Iterator[Session]:
    """The sessions of a trace, in the order of its rows. Raises InputError naming file and line.

    ``place``: what comes before the number of a line where it is named.
    """
    rows = _Rows(path, layout, place)
    group: _Group | None = None
    for batch in batches:
        rows.begin(batch)
        for index in range(len(batch)):
            if layout is None or not layout.played:
                request = rows.request(index, (), 0.0)
                yield Session(request.id, (request,), rows.start_s(index), rows.tags(index, "session"))
                continue
            session = rows.session(index)
            if group is None or group.id != session:
                if group is not None:
                    yield group.session()
                group = _Group(session, rows, index)
            group.add(rows, index)
    if group is not None:
        yield group.session()


class _Group:
    """Rows of one session."""

    def __init__(self, name: str, rows: _Rows, index: int) -> None:
        self.id = name
        self._start_s = rows.start_s(index)
        self._tags = rows.tags(index)
        self._requests: dict[str, RequestSpec] = {}

    def add(self, rows: _Rows, index: int) -> None:
        """Take the next row."""
        after = rows.value("after", index)
        if after is None:
            after = list(self._requests)[-1:]
        else:
            after = [name + rows.suffix for name in after]
            if unknown := [name for name in after if name not in self._requests]:
                raise InputError(
                    f"follows {unknown[0]!r}, which is not above it in its session", where=rows.where(index)
                )
        request = rows.request(index, tuple(after), rows.value("delay_s", index) or 0.0)
        self._requests[request.id] = request

    def session(self) -> Session:
        """All rows so far."""
        return Session(self.id, tuple(self._requests.values()), self._start_s, self._tags)


class _Rows:
    """Makes requests of the rows of one batch after the other."""

    def __init__(self, path: Path, layout: Layout | None, place: str) -> None:
        self._place = place
        self._name = path.name.split(".")[0]
        self._block_tokens = layout.format.block_tokens if layout else None
        self._numbers = RecentNumbers(_NUMBERED_IDS)
        self._next_number = _SMALL_IDS
        self._above: Ints = np.zeros(0, dtype=np.int64)

    def begin(self, batch: Batch) -> None:
        """Go on with a batch."""
        self.suffix = f"#{batch.copy + 1}" if batch.copy else ""
        """What tells the names of a copy from those of the others."""
        self._lines, self._arrivals_s = batch.lines, batch.arrival_s.tolist()
        self._prompts, self._outputs = batch.prompt_tokens.tolist(), batch.output_tokens.tolist()
        self._columns = {name: batch.values(name) or [] for name in batch.more}
        self._ids = None if batch.ids is None else self._numbered(batch.ids)

    def value(self, field: str, index: int) -> Any:
        """Of a column that a file may leave out; none where a row has none."""
        column = self._columns.get(field)
        return None if column is None else column[index]

    def where(self, index: int) -> str:
        """The place of a row."""
        return f"{self._place}{self._lines[index]}"

    def start_s(self, index: int) -> float | None:
        """The time of a row; none: as soon as a client is free."""
        at_s: float = self._arrivals_s[index]
        return None if math.isnan(at_s) else at_s

    def tags(self, index: int, *more: str) -> dict[str, str]:
        """The row's own, and those that are columns."""
        found: dict[str, str] = self.value("tags", index) or {}
        columns = {name: value for name in ("tenant", *more) if (value := self.value(name, index))}
        return found | columns if columns else found

    def session(self, index: int) -> str:
        """The name of the row's session; a row without one is alone."""
        name = self.value("session", index) or self.value("id", index)
        return (name or f"{self._name}/{self._lines[index]}") + self.suffix

    def request(self, index: int, after: tuple[str, ...], delay_s: float) -> RequestSpec:
        """The request of a row."""
        name = self.value("id", index)
        if name is None:
            name = f"{self.value('session', index) or self._name}/{self._lines[index]}"
        return RequestSpec(
            id=name + self.suffix,
            prompt_tokens=self._prompts[index],
            output_tokens=self._outputs[index],
            content=self._content(index),
            after=after,
            delay_s=delay_s,
            priority=self.value("priority", index) or 0,
        )

    def _content(self, index: int) -> Content:
        suffix = self.suffix
        if (segments := self.value("segments", index)) is not None:
            return tuple(Segment(stream + suffix, start, length) for stream, start, length in segments)
        block_tokens = self._block_tokens or self.value("block_tokens", index)
        if self._ids is not None and block_tokens:
            ids = self._all_ids(self._ids.of(index), index)
            return BlockHashes((self.value("scope", index) or self._name) + suffix, ids, block_tokens)
        total = self._prompts[index] + self._outputs[index]
        shared = min(self.value("prefix_tokens", index) or 0, self._prompts[index])
        content: list[Segment] = []
        if shared:
            content.append(Segment(f"prefix/{self.value('prefix_group', index) or ''}{suffix}", 0, shared))
        if session := self.value("session", index):
            content.append(Segment(f"session/{session}{suffix}", shared, total - shared))
        return tuple(content)

    def _all_ids(self, ids: Ints, index: int) -> Ints:
        """Those of a row after those that it keeps of the row above."""
        if kept := self.value("kept_ids", index):
            if kept > len(self._above):
                raise InputError(
                    f"keeps {kept} ids of the row above, which has {len(self._above)}",
                    where=self.where(index),
                )
            ids = np.concatenate((self._above[:kept], ids))
        self._above = ids
        return ids

    def _numbered(self, ids: IdLists) -> IdLists:
        """Small numbers in place of large ids."""
        large = np.flatnonzero((ids.flat < 0) | (ids.flat >= _SMALL_IDS))
        if not len(large):
            return ids
        keys, first, which = np.unique(ids.flat[large], return_index=True, return_inverse=True)
        numbers = self._numbers.get(keys, -1)
        new = np.flatnonzero(numbers < 0)
        new = new[np.argsort(first[new])]  # in the order in which they came
        numbers[new] = self._next_number + np.arange(len(new))
        self._next_number += len(new)
        self._numbers.put(keys, numbers)
        flat = ids.flat.copy()
        flat[large] = numbers[which]
        return IdLists(flat, ids.ends)
