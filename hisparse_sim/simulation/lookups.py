"""Selected rows that the hot buffers are asked for, kept up to date instead of summed anew each step."""

from __future__ import annotations

from hisparse_sim.memory.copies import PagedState
from hisparse_sim.scheduler.request import Request

UNIT = 1 << 20
"""Rows are counted in parts of so many, as integers: a sum of them does not depend on its order."""


def lookups(topk: int, past: int, host_only: int, pages: int) -> int:
    """``UNIT`` times the rows per layer, of a decode after ``past`` tokens, that lie in no resident page.

    The top-k rows are taken to be spread evenly over the ``pages``, of which ``host_only`` are not on the
    GPU.
    """
    return min(topk, past + 1) * host_only * UNIT // pages


class Lookups:
    """The lookups of the requests that ride in the scheduler's cohort."""

    def __init__(self, topk: int) -> None:
        self.topk = topk
        self.changed: set[PagedState] = set()
        """Requests that lost pages since the last ``total``."""
        self._states: dict[Request, PagedState] = {}
        self._each: dict[PagedState, int] = {}
        self._sum = self._largest = 0
        self._short: dict[PagedState, Request] = {}
        """Those whose context is shorter than the top-k: theirs grow with each token."""

    def join(self, request: Request) -> None:
        """A request rides."""
        state: PagedState = request.memory
        self._states[request] = state
        if request.computed < self.topk:
            self._short[state] = request
        else:
            self._set(state)

    def leave(self, request: Request) -> None:
        """It does not any more."""
        state = self._states.pop(request)
        if self._short.pop(state, None) is None:
            gone = self._each.pop(state)
            self._sum -= gone
            if gone == self._largest:
                self._largest = -1

    def total(self, steps: int) -> tuple[int, int]:
        """Lookups of all and of the one with most, when the cohort has taken so many steps."""
        for state in self.changed:
            if state in self._each:
                self._set(state)
        self.changed.clear()
        if self._largest < 0:
            self._largest = max(self._each.values(), default=0)
        whole, largest = self._sum, self._largest
        for state, request in self._short.items():
            if state.host_only:
                past = request.computed + steps - request.joined
                rows = lookups(self.topk, past, state.host_only, state.pages)
                whole += rows
                largest = max(largest, rows)
        return whole, largest

    @property
    def steady(self) -> bool:
        """Whether the total stays what it is until someone joins, leaves or loses a page."""
        return not any(state.host_only for state in self._short)

    def _set(self, state: PagedState) -> None:
        before = self._each.get(state, 0)
        self._each[state] = now = lookups(self.topk, self.topk, state.host_only, state.pages)
        self._sum += now - before
        if now >= self._largest >= 0:
            self._largest = now
        elif before == self._largest:
            self._largest = -1
