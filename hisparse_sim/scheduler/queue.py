"""The waiting queue."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from hisparse_sim.scheduler.request import Request


class WaitingQueue(Protocol):
    """Requests that wait to be admitted, in the order in which they will be tried."""

    def add(self, request: Request) -> None:
        """A request arrives."""

    def put_back(self, request: Request) -> None:
        """A running request was preempted."""

    def remove(self, request: Request) -> None:
        """A request leaves, wherever it stands."""

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class FcfsQueue:
    """First come, first served; preempted requests go to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """At the back."""
        self._queue.append(request)

    def put_back(self, request: Request) -> None:
        """At the very front."""
        self._queue.appendleft(request)

    def remove(self, request: Request) -> None:
        """Take it out."""
        if self._queue[0] is request:
            self._queue.popleft()
        else:
            self._queue.remove(request)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


def urgency(request: Request) -> tuple[int, float]:
    """Smaller runs first, larger is preempted first."""
    return request.priority, request.arrival


class PriorityQueue:
    """Always by ``(priority, arrival)``, preempted requests too."""

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def add(self, request: Request) -> None:
        """At its place."""
        insort(self._queue, request, key=urgency)

    put_back = add

    def remove(self, request: Request) -> None:
        """Take it out."""
        self._queue.remove(request)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)
