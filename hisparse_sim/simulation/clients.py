"""Who sends what, when: plays the sessions of a workload against an engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from hisparse_sim.workload.request import RequestSpec, Session, Workload

Send = Callable[[Session, RequestSpec, Callable[[], None]], None]
"""Send a request of a session; the callback is called later, when it is over, done or failed."""


class Clients:
    """Starts sessions in order, at most ``workload.concurrency`` at a time, and their requests.

    Of the requests only the first ``workload.limit`` are sent, in order of arrival.
    """

    def __init__(self, env: simpy.Environment, workload: Workload, send: Send) -> None:
        self.env = env
        self._send = send
        self._concurrency = workload.concurrency
        self._unsent = self._limit = workload.limit
        self._expected = workload.expected_requests
        self._begun = self._known = 0
        """Sessions that have begun, and their requests."""
        self._live = 0
        self._freed = env.event()
        self._feeding = True
        env.process(self._feed(workload))

    @property
    def done(self) -> bool:
        """Whether all requests of all sessions are over."""
        return not self._feeding and not self._live

    def expected_requests(self) -> int | None:
        """How many requests there will be, as far as is known; the more sessions began, the better."""
        count = self._expected(self._begun, self._known) if self._feeding else self._known
        if self._limit is None:
            return count
        return self._limit if count is None else min(count, self._limit)

    def _feed(self, workload: Workload) -> Generator[simpy.Event, Any, None]:
        for session in workload.sessions():
            if session.start_s is not None and session.start_s > self.env.now:
                yield self.env.timeout(session.start_s - self.env.now)
            while self._concurrency is not None and self._live >= self._concurrency:
                self._freed = self.env.event()
                yield self._freed
            if self._unsent == 0:
                break
            self._live += 1
            self._begun += 1
            self._known += len(session.requests)
            self._play(session)
        self._feeding = False

    def _play(self, session: Session) -> None:
        if len(session.requests) == 1:
            (only,) = session.requests
            if not only.after and only.delay_s <= 0:
                if not self.send(session, only, self.ended):
                    self.ended()
                return
        _Play(self, session)

    def ended(self) -> None:
        """A session is over."""
        self._live -= 1
        if not self._freed.triggered:
            self._freed.succeed()

    def send(self, session: Session, request: RequestSpec, over: Callable[[], None]) -> bool:
        """Hand a request to the engine; False past the limit."""
        if self._unsent is not None:
            if not self._unsent:
                return False
            self._unsent -= 1
        self._send(session, request, over)
        return True


class _Play:
    """One session: each request starts its delay after all those it follows are over."""

    def __init__(self, clients: Clients, session: Session) -> None:
        self.clients = clients
        self.session = session
        self.missing = {r.id: len(r.after) for r in session.requests if r.after}
        self.followers: dict[str, list[RequestSpec]] = {}
        for r in session.requests:
            for before in r.after:
                self.followers.setdefault(before, []).append(r)
        self.open = 1
        """Requests sent, or about to be, and not over; 1 more while some are being started."""
        self._start([r for r in session.requests if not r.after])
        self._close()

    def _start(self, requests: list[RequestSpec]) -> None:
        self.open += len(requests)
        for request in requests:
            if request.delay_s > 0:
                later = self.clients.env.timeout(request.delay_s, request)
                assert later.callbacks is not None
                later.callbacks.append(lambda event: self._arrive(event.value))
            else:
                self._arrive(request)

    def _arrive(self, request: RequestSpec) -> None:
        if not self.clients.send(self.session, request, lambda: self._over(request)):
            self._close()

    def _over(self, request: RequestSpec) -> None:
        ready = []
        for follower in self.followers.get(request.id, ()):
            self.missing[follower.id] -= 1
            if not self.missing[follower.id]:
                ready.append(follower)
        if ready:
            self._start(ready)
        self._close()

    def _close(self) -> None:
        self.open -= 1
        if not self.open:
            self.clients.ended()
