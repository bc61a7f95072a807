"""Requests of a trace as columns, many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import MAX_S
from hisparse_sim.workload.lengths import Floats, Ints
from hisparse_sim.workload.remembered import RecentNames

Mask = npt.NDArray[np.bool_]


class IdLists(Struct):
    """A list of ids for each request, one behind the other: ``flat[ends[i - 1]:ends[i]]``."""

    flat: Ints
    ends: Ints

    @property
    def lengths(self) -> Ints:
        """How many each has."""
        return np.diff(self.ends, prepend=0)

    def of(self, index: int) -> Ints:
        """The ids of one request."""
        return self.flat[self.ends[index - 1] if index else 0 : self.ends[index]]

    def take(self, keep: Ints) -> IdLists:
        """Those of some requests, by index in ascending order."""
        lengths = self.lengths
        kept = np.zeros(len(lengths), dtype=bool)
        kept[keep] = True
        return IdLists(self.flat[np.repeat(kept, lengths)], np.cumsum(lengths[keep]))


class Batch(Struct):
    """Some requests in the order of their file.

    ``arrival_s`` is NaN where the file gives none; before ``check`` it is in the file's own clock.
    ``more``: columns that a format may leave out, with one value a request and None where a row has none:
    lists, or arrays of Arrow that nobody has asked for one by one. ``copy``: of a repeated trace, from 0.
    """

    lines: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    ids: IdLists | None = None
    more: dict[str, Any] = {}
    copy: int = 0
    problems: list[tuple[int, str]] = []
    """Lines that could not be read, and why; they have no row here."""

    def __len__(self) -> int:
        return len(self.lines)

    def values(self, name: str) -> list[Any] | None:
        """A column of ``more`` as a list; none if the file has no such."""
        column = self.more.get(name)
        if column is not None and not isinstance(column, list):
            column = self.more[name] = column.to_pylist()
        return column

    def numbers(self, name: str, dtype: type = np.int64) -> npt.NDArray[Any]:
        """A column of numbers; 0 where there is none."""
        column = self.more.get(name)
        if column is None:
            return np.zeros(len(self), dtype=dtype)
        if isinstance(column, list):
            return np.array([value or 0 for value in column], dtype=dtype)
        return np.asarray(column.fill_null(0).to_numpy())

    def take(self, keep: Ints) -> Batch:
        """Some of the requests, by index in ascending order."""
        return Batch(
            self.lines[keep],
            self.arrival_s[keep],
            self.prompt_tokens[keep],
            self.output_tokens[keep],
            self.ids.take(keep) if self.ids is not None else None,
            {
                name: [column[i] for i in keep.tolist()] if isinstance(column, list) else column.take(keep)
                for name, column in self.more.items()
            },
            self.copy,
        )


class BadLines:
    """Lines left out of a trace, up to a number; one more is an error.

    ``place``: what comes before the number of a line where it is named.
    """

    SHOWN = 5

    def __init__(self, place: str, allowed: int) -> None:
        self._place = place
        self._allowed = allowed
        self.count = 0
        self.first: list[str] = []

    def refuse(self, line: int, problem: str) -> NoReturn:
        """What no leaving out of lines would mend. Raises InputError."""
        raise InputError(problem, where=f"{self._place}{line}")

    def leave_out(self, line: int, problem: str) -> None:
        """Count a line. Raises InputError when it is one too many."""
        where = f"{self._place}{line}"
        if self.count >= self._allowed:
            if self._allowed:
                problem += f" (after {self.count} bad lines that were left out)"
            raise InputError(problem, where=where)
        self.count += 1
        if len(self.first) < self.SHOWN:
            self.first.append(f"{where}: {problem}")

    def notes(self) -> list[str]:
        """What a person should know."""
        if not self.count:
            return []
        more = f", and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return [f"bad lines left out: {self.count} ({'; '.join(self.first)}{more})"]


class Checker:
    """Finds what no column can have: checks batches in the order of the file and sets the clock to 0.

    ``block_tokens`` of ``hash_ids``; none: each row says. ``from_first``: the first arrival is time 0,
    else the file's clock already begins there. ``played``: rows wait for those above them in their session.
    Rows that fail go to ``bad``.
    """

    REMEMBERED_IDS = 250_000
    """An id that comes again is found within so many rows at least."""

    def __init__(
        self,
        bad: BadLines,
        *,
        block_tokens: int | None,
        from_first: bool,
        timed: bool,
        unit_s: float | None,
        played: bool = False,
    ) -> None:
        self._bad = bad
        self._block_tokens = block_tokens
        self._from_first = from_first
        self._timed = timed
        self._unit_s = unit_s
        self._origin: float | None = None
        self._last_s = -np.inf
        self._ids = RecentNames(self.REMEMBERED_IDS)
        self._played = played
        self._sessions = RecentNames(self.REMEMBERED_IDS)
        self._session: str | None = None

    def check(self, batch: Batch) -> Batch:
        """The rows that can be used, their arrivals in seconds. Raises InputError for too many others."""
        wrong: dict[int, str] = {}

        def find(mask: Mask, problem: Callable[[int], str]) -> None:
            for i in np.flatnonzero(mask).tolist():
                wrong.setdefault(i, problem(i))

        prompts, outputs, times = batch.prompt_tokens, batch.output_tokens, batch.arrival_s
        find(prompts < 1, lambda i: f"the prompt has {prompts[i]} tokens; it must have at least 1")
        find(outputs < 0, lambda i: f"the output has {outputs[i]} tokens; it must have 0 or more")
        find(times < 0, lambda i: f"the time {times[i]:g} is negative")
        prefixes, kept = batch.numbers("prefix_tokens"), batch.numbers("kept_ids")
        find(prefixes < 0, lambda i: f"prefix_tokens is {prefixes[i]}; it must be 0 or more")
        find(kept < 0, lambda i: f"kept_ids is {kept[i]}; it must be 0 or more")
        if self._timed:
            find(np.isnan(times), lambda _: "the time of arrival is missing")
        if batch.ids is not None:
            self._check_ids(batch, batch.ids, find)
        if (names := batch.values("id")) is not None:
            for i in self._ids.repeated(names):
                wrong.setdefault(i, f"the id {names[i]!r} was used before")
        self._check_together(batch)
        good = np.ones(len(batch), dtype=bool)
        good[list(wrong)] = False
        self._set_clock(times, good)
        find(
            good & (times > MAX_S),
            lambda i: f"arrives at {times[i]:g} s; the latest is {MAX_S:g}{self._hint()}",
        )
        good[list(wrong)] = False
        latest = np.fmax.accumulate(np.concatenate(([self._last_s], np.where(good, times, -np.inf))))
        find(
            good & (times < latest[:-1]),
            lambda i: f"arrives {latest[i] - times[i]:.6g} s before a line above it; sort the file by time",
        )
        self._last_s = float(latest[-1])
        problems = batch.problems + [(int(batch.lines[i]), problem) for i, problem in wrong.items()]
        for line, problem in sorted(problems):
            self._bad.leave_out(line, problem)
        if not wrong:
            return batch
        good[list(wrong)] = False
        return batch.take(np.flatnonzero(good))

    def _hint(self) -> str:
        """How a clock that begins elsewhere is said."""
        return "" if self._from_first else " (a column of dates or of another clock is called timestamp)"

    def _check_ids(self, batch: Batch, ids: IdLists, find: Callable[..., None]) -> None:
        lengths = ids.lengths
        lengths = lengths + batch.numbers("kept_ids")
        if self._block_tokens:
            block = np.full(len(batch), self._block_tokens)
            has = np.ones(len(batch), dtype=bool)
        else:
            block = batch.numbers("block_tokens")
            has = block > 0
            find((lengths > 0) & ~has, lambda _: "has hash_ids and no block_tokens above 0")
            block = np.maximum(block, 1)
        prompts, totals = batch.prompt_tokens, batch.prompt_tokens + batch.output_tokens
        find(
            has & (lengths < prompts // block),
            lambda i: f"has {lengths[i]} hash ids, too few for {prompts[i]} tokens in blocks of {block[i]}",
        )
        find(
            has & (lengths > -(-totals // block)),
            lambda i: f"has {lengths[i]} hash ids, too many for {totals[i]} tokens in blocks of {block[i]}",
        )

    def _check_together(self, batch: Batch) -> None:
        """Refuse a session that goes on after others: it would be played as two. Raises InputError."""
        if not self._played or not (names := batch.values("session")):
            return
        begins = [i for i, name in enumerate(names) if name != (names[i - 1] if i else self._session)]
        for place in self._sessions.repeated([names[i] for i in begins]):
            i = begins[place]
            self._bad.refuse(
                int(batch.lines[i]),
                f"session {names[i]!r} goes on after rows of another; where requests wait for each other, put"
                " the rows of a session together, all with the time at which it starts",
            )
        self._session = names[-1]

    def _set_clock(self, times: Floats, good: Mask) -> None:
        """Turn the file's clock into seconds, in place."""
        if self._origin is None:
            first = next((float(t) for t in times[good] if not np.isnan(t)), None)
            if first is None:
                return
            self._origin = first if self._from_first else 0.0
            if self._unit_s is None:
                self._unit_s = unit_of_s(first)
        if self._origin:
            times -= self._origin
        if self._unit_s is not None and self._unit_s != 1.0:
            times /= round(1 / self._unit_s)


def unit_of_s(clock: float) -> float:
    """Seconds a tick of a clock that shows ``clock``: seconds, or ms, us or ns since 1970."""
    return next((unit for bound, unit in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if clock > bound), 1.0)
