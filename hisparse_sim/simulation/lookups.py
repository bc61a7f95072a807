"""Selected rows that the hot buffers are asked for, and those that they miss, without a sum a step."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

from msgspec import Struct

from hisparse_sim.cost.locality import STAGE_ENDS, Curve, MissModel
from hisparse_sim.memory.base import NEVER
from hisparse_sim.memory.copies import PagedState
from hisparse_sim.scheduler.request import Request

UNIT = 1 << 20
"""Rows are counted in parts of so many, as integers: a sum of them does not depend on its order."""


class Rows(NamedTuple):
    """``UNIT`` times the rows per layer that are looked up, that miss, and that miss for one request."""

    looked_up: int
    missed: int
    most_missed: int


NONE = Rows(0, 0, 0)


class Warmth(Struct):
    """What a request's hot buffer knows: the lookups of the steps since it had ``origin`` tokens."""

    state: PagedState | None = None
    host_only: int = 0
    origin: int = 0

    def steps(self, state: PagedState, past: int, curve: Curve) -> int:
        """Steps that the buffer knows, of a decode after ``past`` tokens.

        It is empty when the request gets one. Pages that it loses make rows of theirs unknown.
        """
        if state is not self.state:
            self.state, self.host_only, self.origin = state, 0, past
        now = state.host_only
        if now > self.host_only:
            known = curve.steps_left(past - self.origin, self.host_only / state.pages, now / state.pages)
            self.origin = past - known
        self.host_only = now
        return past - self.origin


class Buffered(Warmth):
    """The same of SGLang, whose requests read through their buffer from the first decode on."""

    def steps(self, state: Any, past: int, curve: Curve) -> int:
        """All since it got its buffer."""
        return past - int(state.origin)


class _Rider:
    """What is kept of a request that rides in the cohort."""

    __slots__ = ("due", "looked_up", "missed", "request", "share", "short", "state")

    def __init__(self, request: Request, state: PagedState, short: bool) -> None:
        self.request, self.state = request, state
        self.short = short
        """Its context is shorter than the top-k: its rows grow with each step."""
        self.looked_up = self.missed = 0
        self.share = 0.0
        """Of its lookups that miss."""
        self.due = -1
        """Cohort step at which its buffer comes to its next stage; -1: at none."""


class Lookups:
    """The lookups of requests that decode; kept up to date for those that ride in the cohort.

    A request's rows are taken to be spread evenly over its pages; misses are the expectation of
    ``misses``. They change when pages are lost and, after that, at the stages of a buffer that fills.
    """

    def __init__(self, topk: int, block_size: int, misses: MissModel) -> None:
        self._topk, self._block_size, self._misses = topk, block_size, misses
        self._kinds: dict[int, tuple[Curve, int]] = {}
        """By the pages of a request: its curve, and the rows that a step selects."""
        self.changed: set[PagedState] = set()
        """Requests that lost pages since the last ``total``."""
        self._riders: dict[PagedState, _Rider] = {}
        self._states: dict[Request, PagedState] = {}
        self._short: dict[_Rider, None] = {}
        self._sum = self._sum_missed = self._most = 0
        self._due: list[tuple[int, int, _Rider]] = []
        """Stages of buffers by cohort step; what a rider's ``due`` does not say any more is no longer so."""
        self._pushed = 0

    def of(self, request: Request, past: int) -> Rows:
        """Of one decode of ``request`` after ``past`` tokens."""
        if not request.memory.host_only:
            return NONE
        rows, share, _ = self._measure(request, request.memory, past)
        missed = int(rows * share)
        return Rows(rows, missed, missed)

    def _kind(self, pages: int) -> tuple[Curve, int]:
        context = pages * self._block_size
        found = self._kinds[pages] = self._misses.curve(context), int(self._misses.looked_up(context))
        return found

    def _measure(self, request: Request, state: PagedState, past: int) -> tuple[int, float, int]:
        """Rows looked up after ``past`` tokens, the share of them that misses, and for how many steps that
        share stays, if no page is lost."""
        pages, host_only = state.pages, state.host_only
        curve, selected = self._kinds.get(pages) or self._kind(pages)
        steps = request.user.warmth.steps(state, past, curve)
        share, lasts, staged = curve.steady(host_only / pages), NEVER, curve.staged
        if steps < len(staged) and staged[steps] > share:
            share, lasts = staged[steps], STAGE_ENDS[steps] - steps
        if past < selected:
            selected = past + 1
        return selected * host_only * UNIT // pages, share, lasts

    def join(self, request: Request) -> None:
        """A request rides."""
        state: PagedState = request.memory
        rider = self._riders[state] = _Rider(request, state, request.computed < self._topk)
        self._states[request] = state
        if rider.short:
            self._short[rider] = None
        self.changed.add(state)

    def leave(self, request: Request) -> None:
        """It does not any more."""
        state = self._states.pop(request, None)
        if state is None:
            return
        rider = self._riders.pop(state)
        rider.due = -1
        if rider.short:
            del self._short[rider]
            return
        self._sum -= rider.looked_up
        self._sum_missed -= rider.missed
        if rider.missed == self._most:
            self._most = -1

    def total(self, steps: int) -> Rows:
        """Of all riders, when the cohort has taken so many steps."""
        if self.changed:
            riders = self._riders
            for state in self.changed:
                if state in riders:
                    self._set(riders[state], steps)
            self.changed.clear()
        due = self._due
        while due and due[0][0] <= steps:
            when, _, rider = heappop(due)
            if rider.due == when:
                self._set(rider, steps)
        if self._most < 0:
            self._most = max([rider.missed for rider in self._riders.values() if not rider.short], default=0)
        rows, missed, most, topk = self._sum, self._sum_missed, self._most, self._topk
        for rider in self._short:
            state = rider.state
            if state.host_only:
                request = rider.request
                context = request.computed + steps - request.joined + 1
                each = (context if context < topk else topk) * state.host_only * UNIT // state.pages
                lost = int(each * rider.share)
                rows += each
                missed += lost
                if lost > most:
                    most = lost
        return Rows(rows, missed, most)

    @property
    def until(self) -> int:
        """Cohort step before which the total changes only if someone joins, leaves or loses a page."""
        if any(rider.state.host_only for rider in self._short):
            return 0
        return self._due[0][0] if self._due else NEVER

    def _set(self, rider: _Rider, steps: int) -> None:
        request, state = rider.request, rider.state
        rows, share, lasts = 0, 0.0, NEVER
        if state.host_only:
            rows, share, lasts = self._measure(request, state, request.computed + steps - request.joined)
        rider.share = share
        if not rider.short:
            before, missed = rider.missed, int(rows * share)
            self._sum += rows - rider.looked_up
            self._sum_missed += missed - before
            rider.looked_up, rider.missed = rows, missed
            if missed >= self._most >= 0:
                self._most = missed
            elif before == self._most:
                self._most = -1
        if lasts < NEVER:
            rider.due = steps + lasts
            self._pushed += 1
            heappush(self._due, (rider.due, self._pushed, rider))
        else:
            rider.due = -1
