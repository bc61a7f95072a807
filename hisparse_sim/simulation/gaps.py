"""Inter-token latencies: how often each came, and the longest of each request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulation.record import RequestRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MANY = 1 << 17
"""Latencies that are kept one by one before they are counted."""


def added(total: float, values: Floats) -> float:
    """``total`` and each value in turn: the same to the last bit however many are added at a time."""
    return float(np.add.accumulate(np.concatenate(([total], values)))[-1])


class Gaps:
    """Of all requests. Tokens of one step that came after the same gap count as often as they are."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._us: list[Ints] = []
        """Microseconds, several times each."""
        self._counts: list[Ints] = []
        self._kept, self._limit = 0, _MANY
        self._longest: list[tuple[int, float]] = []
        """(step, gap before it) of each step after which no longer gap has come: gaps fall."""
        self._rides: list[tuple[RequestRecord, int, int]] = []

    def rode(self, record: RequestRecord, first: int, end: int) -> None:
        """A request had a token of each step from ``first`` to before ``end``, the last so far."""
        self._rides.append((record, first, end))

    def add(self, first: int, gaps_s: Floats, tokens: Floats, apart: Sequence[float] = ()) -> None:
        """The gap before each step from the step ``first`` on, and how many tokens came after it.

        ``apart``: step, gap and tokens of others, one after the other, in the order of the steps.
        """
        self._follow(first, gaps_s)
        if not len(gaps_s):
            return
        came = np.flatnonzero(tokens)
        gaps_s, tokens = gaps_s[came], tokens[came]
        if apart:
            others = np.array(apart).reshape(-1, 3).T
            order = np.argsort(np.concatenate((came, others[0] - first)), kind="stable")
            gaps_s = np.concatenate((gaps_s, others[1]))[order]
            tokens = np.concatenate((tokens, others[2]))[order]
        self.total_s = added(self.total_s, gaps_s * tokens)
        self._us.append((gaps_s * 1e6 + 0.5).astype(np.int64))
        self._counts.append(tokens.astype(np.int64))
        self._kept += len(gaps_s)
        if self._kept > self._limit:
            us, _ = self.counted()
            self._kept, self._limit = len(us), len(us) + _MANY

    def counted(self) -> tuple[Ints, Ints]:
        """All latencies in microseconds, rising, and how often each came."""
        us = np.concatenate((np.empty(0, dtype=np.int64), *self._us))
        counts = np.concatenate((np.empty(0, dtype=np.int64), *self._counts))
        us, which = np.unique(us, return_inverse=True)
        counts = np.bincount(which, weights=counts, minlength=len(us)).astype(np.int64)
        self._us, self._counts = [us], [counts]
        return us, counts

    def _follow(self, first: int, gaps_s: Floats) -> None:
        """Each request that rode knows its longest gap; what later ones need of these steps is kept."""
        rides, longest, steps = self._rides, self._longest, len(gaps_s)
        if rides:
            records, begins, ends = zip(*rides, strict=True)
            within = np.array((begins, ends)).T - first
            within[within < 0] = 0
            most = np.maximum.reduceat(np.append(gaps_s, 0.0), within.ravel())[::2]
            most[within[:, 0] == within[:, 1]] = 0.0
            for record, begin, gap_s in zip(records, begins, most.tolist(), strict=True):
                if begin < first:
                    gap_s = max(gap_s, longest[bisect_left(longest, (begin, 0.0))][1])
                record.itl_max_s = max(record.itl_max_s, gap_s)
            rides.clear()
        if steps:
            backwards = gaps_s[::-1]
            most = np.maximum.accumulate(backwards)
            above = np.append(True, backwards[1:] > most[:-1])
            while longest and longest[-1][1] <= most[-1]:
                longest.pop()
            fresh = steps - 1 - np.flatnonzero(above)[::-1]
            longest += zip((first + fresh).tolist(), gaps_s[fresh].tolist(), strict=True)


def together(several: Iterable[Gaps]) -> Gaps:
    """Of several engines, as of one."""
    found = Gaps()
    for gaps in several:
        us, counts = gaps.counted()
        found.total_s += gaps.total_s
        found._us.append(us)
        found._counts.append(counts)
    return found
