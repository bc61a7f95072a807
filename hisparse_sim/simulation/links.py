"""The link between one GPU and host memory, shared by whatever moves over it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappop, heappush

import simpy

H2D, D2H = 0, 1

Transfer = tuple[float, int, simpy.Event | None]
"""Bytes, direction, and the event that fires when they are there, if anybody waits for it."""

_End = tuple[float, int, simpy.Event | None]
"""What the direction must have served, a serial number, and the event that then fires."""


class HostMemory:
    """A node's DRAM, which the links of several replicas share: together they move at most its rate."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._links: list[HostLink] = []

    def join(self, link: HostLink) -> None:
        """A replica's GPUs are on this node."""
        self._links.append(link)

    @property
    def scale(self) -> float:
        """What of their own speed the links reach now."""
        wanted = sum(link.demand for link in self._links)
        return min(1.0, self._bytes_per_s / wanted) if wanted else 1.0

    def advance(self) -> None:
        """Let all transfers run up to now."""
        for link in self._links:
            link.advance()

    def plan(self) -> None:
        """Find out anew when transfers end."""
        for link in self._links:
            link.plan()


class HostLink:
    """Two directions, each shared equally by its transfers; together they stay below a ceiling.

    ``h2d`` and ``d2h`` are bytes/s of one direction alone, ``both`` of the two together: when both
    are busy and would exceed it, each is slowed by the same factor. All ranks of a replica move the
    same bytes at the same time, so one link stands for all.

    Transfers of a direction always have the same speed, so one that needs ``size`` more bytes ends
    when its direction has served each of them ``size`` bytes more: that is all that is kept.
    """

    def __init__(
        self,
        env: simpy.Environment,
        h2d: float,
        d2h: float,
        both: float,
        *,
        memory: HostMemory | None = None,
        ranks: int = 1,
    ) -> None:
        self.env = env
        self._memory, self._ranks = memory, ranks
        if memory is not None:
            memory.join(self)
        self.rates = (h2d, d2h)
        """Bytes/s of each direction alone."""
        self._scale = min(1.0, both / (h2d + d2h))
        self._ends: tuple[list[_End], list[_End]] = ([], [])
        self._served = [0.0, 0.0]
        """Bytes that a transfer would have if it had been there since the direction was last idle."""
        self._since = env.now
        self._alarm: simpy.Event | None = None
        self._next = H2D
        """Direction whose next end the alarm waits for."""
        self._count = 0
        self.bytes = [0.0, 0.0]
        """Moved so far, or promised to a transfer under way, per direction."""

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return any(self._ends)

    def transfer(self, size: float, direction: int) -> simpy.Event:
        """Start to move ``size`` bytes; the event fires when they have arrived."""
        done = self.env.event()
        self.begin([(size, direction, done)])
        return done

    def begin(self, transfers: Iterable[Transfer]) -> None:
        """Start several at once."""
        together = self._memory or self
        together.advance()
        for size, direction, done in transfers:
            self.bytes[direction] += size
            if size > 0:
                self._count += 1  # of transfers that end together, the first come is the first told
                heappush(self._ends[direction], (self._served[direction] + size, self._count, done))
            elif done is not None:
                done.succeed()
        together.plan()

    @property
    def demand(self) -> float:
        """Bytes/s of host memory that the link would use if it had that to itself."""
        busy = [self.rates[d] for d in (H2D, D2H) if self._ends[d]]
        return self._ranks * sum(busy) * (self._scale if len(busy) > 1 else 1.0)

    def _speed(self, direction: int) -> float:
        """Bytes/s of one transfer."""
        scale = self._scale if self._ends[1 - direction] else 1.0
        if self._memory is not None:
            scale *= self._memory.scale
        return self.rates[direction] * scale / len(self._ends[direction])

    def advance(self) -> None:
        """Let the transfers run up to now."""
        now = self.env.now
        elapsed, self._since = now - self._since, now
        if elapsed:
            for direction in (H2D, D2H):
                if self._ends[direction]:
                    self._served[direction] += elapsed * self._speed(direction)

    def plan(self) -> None:
        """Wake up when the next transfer ends, at the speeds of now."""
        soonest = math.inf
        for direction in (H2D, D2H):
            if ends := self._ends[direction]:
                wait = max(0.0, ends[0][0] - self._served[direction]) / self._speed(direction)
                if wait < soonest:
                    soonest, self._next = wait, direction
        if soonest == math.inf:
            self._alarm = None
            return
        self._alarm = self.env.timeout(soonest)
        assert self._alarm.callbacks is not None
        self._alarm.callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm is not self._alarm:  # planned before another transfer came
            return
        together = self._memory or self
        together.advance()
        # The transfer waited for has ended by definition: late in a long run the clock's rounding is
        # worth more bytes than a small transfer has, and one left over would ring for ever.
        direction = self._next
        ends = self._ends[direction]
        served = max(self._served[direction], ends[0][0])
        while ends and ends[0][0] <= served:
            done = heappop(ends)[2]
            if done is not None:
                done.succeed()
        self._served[direction] = served if ends else 0.0
        together.plan()


class StepLink:
    """A link over which nothing moves but what the steps of one engine begin, one step after the other.

    When bytes will be there is known when they begin to move, so no event has to tell. A direction is as
    fast however many transfers share it, and who waits waits for bytes to the device only: of those to
    the host it is enough to know how many are left.
    """

    def __init__(self, env: simpy.Environment, h2d: float, d2h: float, both: float) -> None:
        self.env = env
        self.rates = (h2d, d2h)
        """Bytes/s of each direction alone."""
        self._scale = min(1.0, both / (h2d + d2h))
        self._left, self._since = 0.0, env.now
        """Bytes still to come to the host, and when that was."""
        self.bytes = [0.0, 0.0]
        """Moved so far, or promised to a transfer under way, per direction."""

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return self._left > 0 and self._remaining() > 0

    def _remaining(self) -> float:
        """Bytes still to come to the host, none of the other direction being under way since."""
        return max(0.0, self._left - (self.env.now - self._since) * self.rates[D2H])

    def send(self, h2d_bytes: float, d2h_bytes: float) -> float:
        """Start to move so many bytes; returns when those to the device are there.

        Before that nothing else may start.
        """
        self.bytes[H2D] += h2d_bytes
        self.bytes[D2H] += d2h_bytes
        now, left = self.env.now, self._remaining() + d2h_bytes
        h2d, d2h = self.rates
        if not left:
            then = now + h2d_bytes / h2d
        else:
            # Both at reduced speed until one direction is through.
            h2d_s, d2h_s = h2d_bytes / (h2d * self._scale), left / (d2h * self._scale)
            if d2h_s < h2d_s:
                then, left = now + d2h_s + (h2d_s - d2h_s) * self._scale, 0.0
            else:
                then, left = now + h2d_s, left - h2d_s * d2h * self._scale
        self._left, self._since = left, then
        return then
