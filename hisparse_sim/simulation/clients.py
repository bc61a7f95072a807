"""Who sends what, when: plays the sessions of a workload against an engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from hisparse_sim.workload.request import RequestSpec, Session, Workload

Send = Callable[[Session, RequestSpec, Callable[[], None]], None]
"""Send a request of a session; the callback is called when it is over, done or failed."""


class Clients:
    """Starts sessions in order, at most ``workload.concurrency`` at a time, and their requests.

    ``limit``: send only so many requests.
    """

    def __init__(
        self, env: simpy.Environment, workload: Workload, send: Send, *, limit: int | None = None
    ) -> None:
        self.env = env
        self._send = send
        self._live = 0
        self._freed = env.event()
        self._limit = workload.concurrency
        self._unsent = limit
        self.done = False
        """All requests of all sessions are over."""
        self._feeding = True
        env.process(self._feed(workload))

    def _feed(self, workload: Workload) -> Generator[simpy.Event, Any, None]:
        for session in workload.sessions():
            if session.start_s is not None and session.start_s > self.env.now:
                yield self.env.timeout(session.start_s - self.env.now)
            while self._limit is not None and self._live >= self._limit:
                self._freed = self.env.event()
                yield self._freed
            if self._unsent == 0:
                break
            self._live += 1
            _Play(self, session)
        self._feeding = False
        self.done = not self._live

    def ended(self) -> None:
        """A session is over."""
        self._live -= 1
        if not self._freed.triggered:
            self._freed.succeed()
        self.done = not self._feeding and not self._live

    def send(self, session: Session, request: RequestSpec, over: Callable[[], None]) -> None:
        """After its delay, hand a request to the engine; past the limit it is over without that."""
        if request.delay_s > 0:
            later = self.env.timeout(request.delay_s)
            assert later.callbacks is not None
            later.callbacks.append(lambda _: self._send_now(session, request, over))
        else:
            self._send_now(session, request, over)

    def _send_now(self, session: Session, request: RequestSpec, over: Callable[[], None]) -> None:
        if self._unsent is not None:
            if self._unsent == 0:
                over()
                return
            self._unsent -= 1
        self._send(session, request, over)


class _Play:
    """One session: each request starts once those it follows are over."""

    def __init__(self, clients: Clients, session: Session) -> None:
        self.clients = clients
        self.session = session
        self.left = len(session.requests)
        self.missing = {r.id: len(r.after) for r in session.requests}
        self.followers: dict[str, list[RequestSpec]] = {}
        for r in session.requests:
            for before in r.after:
                self.followers.setdefault(before, []).append(r)
        if not self.left:
            clients.ended()
        for r in session.requests:
            if not r.after:
                clients.send(session, r, self._over(r.id))

    def _over(self, id_: str) -> Callable[[], None]:
        def over() -> None:
            self.left -= 1
            for r in self.followers.get(id_, ()):
                self.missing[r.id] -= 1
                if not self.missing[r.id]:
                    self.clients.send(self.session, r, self._over(r.id))
            if not self.left:
                self.clients.ended()

        return over
