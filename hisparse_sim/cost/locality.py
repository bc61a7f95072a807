"""Which share of the rows that attention selects is not in a request's hot buffer.

The expectation of the process in ``locality/reuse.py``, averaged over the model's layers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property, lru_cache
from itertools import pairwise
from math import log2
from operator import neg
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from hisparse_sim.locality.file import FALLBACK, Locality, load_locality, locality_path
from hisparse_sim.locality.policies import POLICIES
from hisparse_sim.locality.reuse import Floats, Process, Reuse, reuse
from hisparse_sim.scenario.model import ModelSpec

Start = Literal["empty", "first_rows"]

_PER_OCTAVE = 4
"""Contexts are rounded to so many sizes an octave; between two the miss share changes by under 1 %."""
_STEPS = 2048
"""Steps after a transition that are told apart: a buffer of twice the top-k is full after about 7."""
_STAGES = [0, 1, 2, 3, *(int(2 ** (i / 2)) for i in range(4, 23))]
"""Half an octave each. What changes at a few steps only, a simulation can skip over."""
STAGE_ENDS: list[int] = [b for a, b in pairwise(_STAGES) for _ in range(a, b)]
"""By steps since the buffer was empty: when the next stage begins."""
_TYPICAL_ROWS = 65_536
"""A context in which a locality's uncertainty is told."""
_HOST_SHARES: list[float] = [2 ** (i / 8) for i in range(-80, 1)]
"""Shares of pages that are not resident between which steady misses are interpolated; below, the first's."""


class Curve:
    """Miss shares of one buffer in one context, as lists: what a step of a simulation looks up.

    A decode step looks its rows up in the buffer unless their pages are resident. ``cold[n]``: share that
    misses ``n`` steps after the buffer was empty, or held the context's first rows, while those that were
    looked up do not fill it.
    """

    def __init__(
        self, parts: list[tuple[float, Reuse]], buffer_rows: float, policy: str, start: Start = "empty"
    ) -> None:
        evict = POLICIES[policy]
        shares = [sum(w * evict(r, buffer_rows / host) for w, r in parts) for host in _HOST_SHARES]
        # More host rows, more misses; fixed points are solved to a part in a billion.
        self._steady: list[float] = np.maximum.accumulate(shares).tolist()
        weights = np.array([w for w, _ in parts])
        cold = weights @ np.array([r.share[:_STEPS] for _, r in parts])
        if start == "first_rows":
            cold = weights @ np.array([r.share[:_STEPS] * _idle(r, buffer_rows) for _, r in parts])
        self.cold: list[float] = cold.tolist()
        self.staged: list[float] = np.repeat(
            [float(cold[a:b].mean()) for a, b in pairwise(_STAGES)], np.diff(_STAGES)
        ).tolist()
        """``cold``, averaged over stages that last longer and longer: :data:`STAGE_ENDS`."""
        self._cold_sums: list[float] = np.concatenate(([0.0], np.cumsum(cold))).tolist()
        self._distinct: list[float] = (weights @ np.array([r.distinct[:_STEPS] for _, r in parts])).tolist()
        self._buffer_rows = buffer_rows
        self.rows = sum(w * r.rows for w, r in parts)
        """Different rows of a step, nothing resident."""

    def steady(self, host_share: float) -> float:
        """Share of lookups that miss in the long run, ``host_share`` of the pages not resident.

        Resident rows take no slot, so the buffer reaches 1 / host_share times further back.
        """
        if host_share <= _HOST_SHARES[0]:
            return self._steady[0]
        at = bisect_left(_HOST_SHARES, host_share)
        low, high = _HOST_SHARES[at - 1], _HOST_SHARES[at]
        return self._steady[at - 1] + (self._steady[at] - self._steady[at - 1]) * (host_share - low) / (
            high - low
        )

    def at(self, host_share: float, steps: int) -> float:
        """The same ``steps`` after the buffer was empty."""
        steady = self.steady(host_share)
        return max(steady, self.cold[steps]) if steps < len(self.cold) else steady

    def mean(self, host_share: float, steps: int) -> float:
        """Of the first ``steps`` steps after the buffer was empty."""
        steady = self.steady(host_share)
        cold = min(steps, bisect_left(self.cold, -steady, key=neg))
        return (self._cold_sums[cold] + (steps - cold) * steady) / steps if steps else steady

    def steps_left(self, steps: int, before: float, after: float) -> int:
        """How many of the last ``steps`` steps a buffer still knows, once more pages are not resident.

        ``before`` and ``after``: shares of pages that are not. Of what it could hold of those steps it
        holds the part that was looked up in it: as many rows as fewer steps look up now.
        """
        if before <= 0.0:
            return 0
        known = min(self._distinct[min(steps, _STEPS - 1)], self._buffer_rows / after)
        return bisect_right(self._distinct, known * min(1.0, before / after)) - 1


def _idle(r: Reuse, buffer_rows: float) -> Floats:
    """Of rows not yet looked up, step by step, the part that lies behind the first ``buffer_rows``."""
    rest = np.maximum(r.context_rows - r.distinct[:_STEPS], 1.0)
    idle: Floats = np.minimum(1.0, max(0.0, r.context_rows - buffer_rows) / rest)
    return idle


class FixedCurve(Curve):
    """The same share always."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.cold = self.staged = []
        self._cold_sums = [0.0]

    def steady(self, host_share: float) -> float:
        """That share."""
        return self._share

    def steps_left(self, steps: int, before: float, after: float) -> int:
        """None: nothing is cold."""
        return 0


class MissModel:
    """Misses of one engine's hot buffers: of a ``locality``, or a fixed share of the lookups.

    ``queries`` tokens are verified a step, ``accepted`` of them kept (1 and 1 without speculation); what
    is looked up is their union. ``start``: what a buffer holds at first. Queries take under 1 ms once a
    context was asked for; contexts are rounded.
    """

    def __init__(
        self,
        locality: Locality | float,
        *,
        topk_rows: int,
        hot_rows: int,
        queries: int = 1,
        accepted: float = 1.0,
        policy: str = "lru",
        start: Start = "empty",
        stands_in_for: str = "",
    ) -> None:
        self.locality = None if isinstance(locality, float | int) else locality
        self.fixed = float(locality) if isinstance(locality, float | int) else None
        self.topk_rows, self.hot_rows = topk_rows, hot_rows
        self._stands_in_for = stands_in_for
        self._how = queries, accepted, policy
        self._start: Start = start
        self._curves: dict[int, Curve] = {}
        self._fixed = FixedCurve(self.fixed or 0.0)

    @property
    def id(self) -> str:
        """What a manifest names: the locality's id, or that the share is fixed."""
        return self.locality.id if self.locality is not None else f"fixed {self.fixed:g}"

    @property
    def source(self) -> str:
        """Where the figures behind it come from."""
        return self.locality.source if self.locality is not None else "stated in the scenario"

    @property
    def outside(self) -> str:
        """What was not measured, in words; empty if buffers of this size were."""
        if self._stands_in_for:
            return f"misses of {self._stands_in_for}, from those of {self.id.upper()}"
        if self.locality is None or self.locality.buffer_rows is None:
            return ""
        low, high = (rows / self.locality.topk_rows * self.topk_rows for rows in self.locality.buffer_rows)
        if low <= self.hot_rows <= high:
            return ""
        return f"misses of a hot buffer of {self.hot_rows:,} rows, from those of {low:,.0f} to {high:,.0f}"

    def curve(self, context_rows: float) -> Curve:
        """What a simulation looks up, of a context of about ``context_rows``."""
        if self.fixed is not None:
            return self._fixed
        octave = round(_PER_OCTAVE * log2(max(1.0, context_rows)))
        found = self._curves.get(octave)
        if found is None:
            found = Curve(self._parts(2 ** (octave / _PER_OCTAVE)), self.hot_rows, self._how[2], self._start)
            self._curves[octave] = found
        return found

    def looked_up(self, context_rows: float) -> float:
        """Different rows that the tokens of one step select, in one layer."""
        queries = self._how[0]
        if queries == 1 or self.fixed is not None:  # no locality: as if no two tokens agreed
            return min(float(queries * self.topk_rows), context_rows)
        return self.curve(context_rows).rows

    def share(
        self,
        context_rows: float,
        *,
        resident_share: float = 0.0,
        steps: int | None = None,
        start: Start = "empty",
    ) -> float:
        """Expected share of lookups that miss; lookups are the selected rows that are not resident.

        ``steps``: since a transition that left the buffer as ``start`` says; none: long ago.
        ``first_rows`` holds the context's first rows, of which any may be selected.
        """
        if self.fixed is not None:
            return self.fixed
        host = 1.0 - resident_share
        if host <= 0.0:
            return 0.0
        curve = self.curve(context_rows)
        if steps is None:
            return curve.steady(host)
        if start == "empty":
            return curve.at(host, steps)
        reach = self.hot_rows / host
        missed = 0.0
        for weight, r in self._parts(context_rows):
            at = min(float(steps), r.window_of(reach))
            rest = max(0.0, r.context_rows - r.distinct_in(at))
            idle = max(0.0, r.context_rows - reach)
            missed += (
                weight * float(np.interp(at, r.ages, r.share)) * (min(1.0, idle / rest) if rest else 0.0)
            )
        return missed

    @cached_property
    def uncertainty(self) -> float:
        """Relative, of a share of misses: the longer side of its range, nothing resident."""
        low, high = self.share_range(_TYPICAL_ROWS)
        share = self.share(_TYPICAL_ROWS)
        return max(1.0 - low / share, high / share - 1.0) if share else 0.0

    def mean_share(self, context_rows: float, steps: int, *, resident_share: float = 0.0) -> float:
        """The mean over a request's first ``steps`` decode steps."""
        host = 1.0 - resident_share
        return self.curve(context_rows).mean(host, steps) if host > 0.0 else 0.0

    def share_range(self, context_rows: float, *, resident_share: float = 0.0) -> tuple[float, float]:
        """Around :meth:`share`: from that of a buffer twice as large to a locality less good by its error.

        The figures come from question answering; agentic contexts, which nobody published, repeat
        themselves more.
        """
        share = self.share(context_rows, resident_share=resident_share)
        if self.locality is None:
            return share, share
        twice = self.share(context_rows, resident_share=1.0 - (1.0 - resident_share) / 2)
        return twice, min(1.0, share * (1.0 + (self.locality.miss_error or 0.0)))

    def _parts(self, context_rows: float) -> list[tuple[float, Reuse]]:
        assert self.locality is not None
        queries, accepted, _ = self._how
        layers = sum(c.layers for c in self.locality.classes)
        made = []
        for c in self.locality.classes:
            processes = c.processes()
            for process in processes:
                r = _reuse(process, self.topk_rows, context_rows)
                made.append(
                    (c.layers / layers / len(processes), r.verified(queries=queries, accepted=accepted))
                )
        return made


@lru_cache(maxsize=256)
def _reuse(process: Process, topk_rows: int, context_rows: float) -> Reuse:
    return reuse(process, topk_rows=topk_rows, context_rows=context_rows)


def misses_of(
    model: ModelSpec,
    given: str | float | None,
    *,
    hot_rows: int,
    queries: int = 1,
    accepted: float = 1.0,
    start: Start = "empty",
) -> MissModel:
    """What a scenario's ``locality`` means for its model: a share, a file, or (none) the model's own.

    A model that names no locality is given that of GLM-5.1, and says so. Those that ask alike share one,
    and what it has worked out.
    """
    named: str | float = given if given is not None else model.locality or FALLBACK
    stands_in_for = model.name if given is None and model.locality is None else ""
    source = named if isinstance(named, float | int) else locality_path(named)
    about = _About(
        source, _written(source), model.index_topk, hot_rows, queries, accepted, start, stands_in_for
    )
    return _misses(about)


class _About(NamedTuple):
    """What a :class:`MissModel` hangs on. ``written``: when its file was, and how long it is."""

    locality: float | Path
    written: tuple[int, int] | None
    topk_rows: int
    hot_rows: int
    queries: int
    accepted: float
    start: Start
    stands_in_for: str


def _written(source: float | Path) -> tuple[int, int] | None:
    if not isinstance(source, Path):
        return None
    try:
        facts = source.stat()
    except (OSError, ValueError):  # reading it says what is wrong
        return None
    return facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=64)
def _misses(about: _About) -> MissModel:
    given = about.locality
    return MissModel(
        load_locality(given) if isinstance(given, Path) else given,
        topk_rows=about.topk_rows,
        hot_rows=about.hot_rows,
        queries=about.queries,
        accepted=about.accepted,
        start=about.start,
        stands_in_for=about.stands_in_for,
    )
