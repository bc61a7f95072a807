"""Running requests that decode a token a step and need nothing else: counted together, not one by one.

A step costs nothing for a request that rides in the cohort. What it was when it joined and the steps
since tell where it is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from hisparse_sim.memory.base import NEVER
from hisparse_sim.scheduler.request import Request


class Cohort:
    """Requests whose ``computed`` grows by one with each step, kept in the order of admission.

    While a request rides, the counts in its own record are those of the step before it joined.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Steps so far, of whoever rode."""
        self.tokens = 0
        """Computed tokens of all that ride, together."""
        self.size = 0
        """How many ride."""
        self.wary = 0
        """How many are quiet only while blocks are free."""
        self._orders: list[int] = []
        self._riding: dict[int, Request] = {}
        self._due: list[tuple[int, int, Request]] = []
        """Who has to leave when; the first is always somebody who rides."""
        self._first_due = NEVER

    def __iter__(self) -> Iterator[Request]:
        """In the order of admission."""
        return map(self._riding.__getitem__, list(self._orders))

    def before(self, order: int) -> int:
        """How many ride that were admitted before ``order``."""
        return bisect_left(self._orders, order)

    def after(self, order: int) -> list[Request]:
        """Those admitted after ``order``."""
        return [self._riding[o] for o in self._orders[bisect_left(self._orders, order + 1) :]]

    def join(self, request: Request, tokens: int) -> None:
        """Let a request ride for at most ``tokens`` steps."""
        request.joined, request.due = self.steps, self.steps + tokens
        self.size += 1
        self.tokens += request.computed
        self.wary += request.quiet_while_free
        self._riding[request.order] = request
        if self._orders and self._orders[-1] > request.order:
            insort(self._orders, request.order)
        else:
            self._orders.append(request.order)
        self._has_to_leave(request)

    def leave(self, request: Request) -> None:
        """A request rides no longer; its own record says again what it has computed."""
        request.furthest = request.computed
        request.joined = -1
        self.size -= 1
        self.tokens -= request.computed
        self.wary -= request.quiet_while_free
        del self._riding[request.order]
        del self._orders[bisect_left(self._orders, request.order)]
        if request.due <= self._first_due:
            self._forget_gone()

    def computed(self, request: Request) -> int:
        """Computed tokens of a request that rides."""
        return request.computed + self.steps - request.joined

    def advance(self, steps: int) -> None:
        """So many steps pass."""
        self.steps += steps
        self.tokens += steps * self.size

    def overdue(self) -> Iterator[Request]:
        """Those that must not ride in the next step; each must leave before the next is asked for."""
        while self._first_due <= self.steps:
            yield self._due[0][2]

    def take_due(self) -> list[Request]:
        """Those that must not ride in the next step; each must leave, or is ``still_due``."""
        due: list[Request] = []
        while self._first_due <= self.steps:
            request = heappop(self._due)[2]
            if not due or due[-1] is not request:  # it may have left and come again
                due.append(request)
            self._forget_gone()
        return due

    def still_due(self, requests: Iterable[Request]) -> None:
        """These have not left."""
        for request in requests:
            self._has_to_leave(request)

    @property
    def quiet_steps(self) -> int:
        """Steps until somebody has to leave."""
        return self._first_due - self.steps

    def _has_to_leave(self, request: Request) -> None:
        heappush(self._due, (request.due, request.order, request))
        if request.due < self._first_due:
            self._first_due = request.due

    def _forget_gone(self) -> None:
        """Forget those at the front who left before their time."""
        due = self._due
        while due:
            when, _, request = due[0]
            if request.joined >= 0 and request.due == when:
                self._first_due = when
                return
            heappop(due)
        self._first_due = NEVER
