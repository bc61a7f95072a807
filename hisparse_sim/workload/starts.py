"""When sessions start: at arrivals of an open loop, or as clients of a closed one become free."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from hisparse_sim.scenario.arrivals import ArrivalsSpec
from hisparse_sim.workload.arrivals import arrival_times_s


class Starts(Protocol):
    """The fields of a description that say when sessions start."""

    @property
    def concurrency(self) -> int | None:
        """Clients, or a cap."""
        ...

    @property
    def ramp_up_s(self) -> float:
        """Until the last client begins."""
        ...

    @property
    def arrivals(self) -> ArrivalsSpec | None:
        """Of an open loop."""
        ...


def session_starts_s(spec: Starts, count: int | None, seed: int) -> Iterator[float | None]:
    """The start of each session, in seconds; none: as soon as a client is free.

    Client i of n begins at ``ramp_up_s`` x i / n.
    """
    if spec.arrivals is not None:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed).spawn(1)[0]))
        return iter(arrival_times_s(spec.arrivals, rng, count))
    return itertools.islice(_ramp(spec.concurrency or 1, spec.ramp_up_s), count)


def _ramp(clients: int, ramp_up_s: float) -> Iterator[float | None]:
    if ramp_up_s:
        yield from (ramp_up_s * client / clients for client in range(clients))
    yield from itertools.repeat(None)


def expected_requests(count: int | None, sessions: int, requests: int) -> int | None:
    """Of ``count`` sessions, if they go on as the first ``sessions`` of them, which have ``requests``."""
    if count is None or not sessions:
        return None
    return requests + round((count - sessions) * requests / sessions)


def session_count(asked: int | None, spec: Starts) -> int | None:
    """How many sessions: as asked, or two a client and at least 4; none: until the arrivals end."""
    if asked is None and spec.arrivals is None:
        return max(4, 2 * (spec.concurrency or 1))
    return asked
