"""What of a stream may be among the first requests that are sent."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from msgspec.structs import replace

from hisparse_sim.workload.request import RequestSpec, Session, Workload


def first_sessions(workload: Workload) -> Iterator[Session]:
    """The sessions that may have a part in the first ``workload.limit`` requests, without what cannot.

    Which requests those are depends on how fast they are served. Certain is: when a session begins, the
    ones before it have sent all they have, except those still alive. These are at most ``concurrency`` - 1
    and have sent what does not wait. And before a request comes all that it waits for. So what is left
    out has ``limit`` others before it however fast they are served, and is never sent: played with the
    limit, these sessions are all of the workload. They need not be cut again to be the same.
    """
    limit = workload.limit
    if limit is None:
        yield from workload.sessions()
        return
    alive = None if workload.concurrency is None else workload.concurrency - 1
    largest: list[int] = []
    """Of the sessions so far that have most left to send, so many as may be alive."""
    sent = 0
    """Requests that have been sent at least when the next session begins."""
    for session in workload.sessions():
        if sent >= limit:
            return
        requests = _within(session, limit - sent)
        yield replace(session, requests=requests) if len(requests) < len(session.requests) else session
        at_once = sum(not r.after and not r.delay_s for r in requests)
        sent += at_once
        left = len(requests) - at_once
        if alive is None:
            continue
        if len(largest) < alive:
            heapq.heappush(largest, left)
        else:
            sent += heapq.heappushpop(largest, left) if alive else left


def _within(session: Session, limit: int) -> tuple[RequestSpec, ...]:
    """The requests of a session that have fewer than ``limit`` of it before them, by the longest chain."""
    before: dict[str, int] = {}
    for request in session.requests:
        before[request.id] = max((before[name] + 1 for name in request.after), default=0)
    return tuple(request for request in session.requests if before[request.id] < limit)
