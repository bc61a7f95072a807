"""Selected rows that the hot buffers are asked for, and those that they miss, without a sum a step."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

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


@dataclass(slots=True)
class Warmth:
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


class Lookups:
    """The lookups of requests that decode; kept up to date for those that ride in the cohort.

    A request's rows are taken to be spread evenly over its pages; misses are the expectation of
    ``misses``. They change when pages are lost and, after that, at the stages of a buffer that fills.
    """

    def __init__(self, topk: int, block_size: int, misses: MissModel) -> None:
        self._topk, self._block_size, self._misses = topk, block_size, misses
        self._curves: dict[int, tuple[Curve, int]] = {}
        """And the rows that a step selects, by the pages of a request."""
        self.changed: set[PagedState] = set()
        """Requests that lost pages since the last ``total``."""
        self._states: dict[Request, PagedState] = {}
        self._riders: dict[PagedState, Request] = {}
        self._each: dict[PagedState, Rows] = {}
        self._sum = self._sum_missed = self._most = 0
        self._short: dict[PagedState, float] = {}
        """Share of misses of those whose context is shorter than the top-k: their rows grow."""
        self._due: list[tuple[int, int, PagedState]] = []
        """Cohort steps at which buffers come to their next stage; valid if ``_due_at`` says the same."""
        self._due_at: dict[PagedState, int] = {}
        self._pushed = 0

    def of(self, request: Request, past: int) -> Rows:
        """Of one decode of ``request`` after ``past`` tokens."""
        if not request.memory.host_only:
            return NONE
        return self._rows(request.memory, past, self._share(request, past)[0])

    def _kind(self, pages: int) -> tuple[Curve, int]:
        """The curve of a context of so many pages, and the rows that a step selects of it."""
        found = self._curves.get(pages)
        if found is None:
            context = pages * self._block_size
            found = self._curves[pages] = self._misses.curve(context), int(self._misses.looked_up(context))
        return found

    def _rows(self, state: PagedState, past: int, share: float) -> Rows:
        """Looked up after ``past`` tokens, and the ``share`` of them that misses."""
        selected = self._kind(state.pages)[1]
        rows = min(selected, past + 1) * state.host_only * UNIT // state.pages
        missed = int(rows * share)
        return Rows(rows, missed, missed)

    def _share(self, request: Request, past: int) -> tuple[float, int]:
        """Of its lookups that miss, and for how many steps that stays, if no page is lost."""
        state: PagedState = request.memory
        curve = self._kind(state.pages)[0]
        steps = request.user.warmth.steps(state, past, curve)
        share = curve.steady(state.host_only / state.pages)
        if steps < len(curve.staged) and curve.staged[steps] > share:
            return curve.staged[steps], STAGE_ENDS[steps] - steps
        return share, NEVER

    def join(self, request: Request) -> None:
        """A request rides."""
        if request.joined < 0:  # and left again in the same step
            return
        state: PagedState = request.memory
        self._states[request] = state
        self._riders[state] = request
        if request.computed < self._topk:
            self._short[state] = 0.0
        else:
            self._each[state] = NONE
        self.changed.add(state)

    def leave(self, request: Request) -> None:
        """It does not any more."""
        state = self._states.pop(request, None)
        if state is None:
            return
        del self._riders[state]
        self._due_at.pop(state, None)
        if self._short.pop(state, None) is None:
            gone = self._each.pop(state)
            self._sum -= gone.looked_up
            self._sum_missed -= gone.missed
            if gone.missed == self._most:
                self._most = -1

    def total(self, steps: int) -> Rows:
        """Of all riders, when the cohort has taken so many steps."""
        for state in self.changed:
            if state in self._riders:
                self._set(state, steps)
        self.changed.clear()
        while self._due and self._due[0][0] <= steps:
            when, _, state = heappop(self._due)
            if self._due_at.get(state) == when:
                self._set(state, steps)
        if self._most < 0:
            self._most = max((rows.missed for rows in self._each.values()), default=0)
        rows, missed, most, topk = self._sum, self._sum_missed, self._most, self._topk
        for state, share in self._short.items():
            if state.host_only:
                request = self._riders[state]
                context = request.computed + steps - request.joined + 1
                each = (context if context < topk else topk) * state.host_only * UNIT // state.pages
                lost = int(each * share)
                rows += each
                missed += lost
                if lost > most:
                    most = lost
        return Rows(rows, missed, most)

    @property
    def until(self) -> int:
        """Cohort step before which the total changes only if someone joins, leaves or loses a page."""
        if any(state.host_only for state in self._short):
            return 0
        return self._due[0][0] if self._due else NEVER

    def _set(self, state: PagedState, steps: int) -> None:
        request = self._riders[state]
        past = request.computed + steps - request.joined
        share, lasts = self._share(request, past) if state.host_only else (0.0, NEVER)
        if state in self._short:
            self._short[state] = share
        else:
            before, now = self._each[state], self._rows(state, past, share)
            self._each[state] = now
            self._sum += now.looked_up - before.looked_up
            self._sum_missed += now.missed - before.missed
            if now.missed >= self._most >= 0:
                self._most = now.missed
            elif before.missed == self._most:
                self._most = -1
        self._due_at.pop(state, None)
        if lasts < NEVER:
            self._due_at[state] = steps + lasts
            self._pushed += 1
            heappush(self._due, (steps + lasts, self._pushed, state))
