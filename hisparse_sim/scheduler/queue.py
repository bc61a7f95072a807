"""The waiting queue."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol, SupportsIndex

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

    def __getitem__(self, place: SupportsIndex, /) -> Request: ...

    def __len__(self) -> int: ...


class FcfsQueue(deque[Request]):
    """First come, first served; preempted requests go to the front. Only ``add`` and ``put_back`` put in."""

    add = deque.append
    put_back = deque.appendleft


def urgency(request: Request) -> tuple[int, float]:
    """Smaller runs first, larger is preempted first."""
    return request.priority, request.arrival


class PriorityQueue(list[Request]):
    """Always by ``(priority, arrival)``, preempted requests too. Only ``add`` and ``put_back`` put in."""

    def add(self, request: Request) -> None:
        """At its place."""
        insort(self, request, key=urgency)

    put_back = add
