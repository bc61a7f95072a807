"""The link between one GPU and host memory, shared by whatever moves over it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

H2D, D2H = 0, 1
_ROUNDING_BYTES = 4096
"""A transfer with less than this left has arrived: the clock's rounding is worth some bytes."""


class _Flow:
    __slots__ = ("direction", "done", "left")

    def __init__(self, direction: int, size: float, done: simpy.Event) -> None:
        self.direction = direction
        self.left = size
        self.done = done


class HostLink:
    """Two directions, each shared equally by its transfers; together they stay below a ceiling.

    ``h2d`` and ``d2h`` are bytes/s of one direction alone, ``both`` of the two together. All ranks
    of a replica move the same bytes at the same time, so one link stands for all.
    """

    def __init__(self, env: simpy.Environment, h2d: float, d2h: float, both: float) -> None:
        self.env = env
        self._rate = (h2d, d2h)
        self._both = both
        self._flows: list[_Flow] = []
        self._since = env.now
        self._alarm: simpy.Event | None = None
        self.bytes = [0.0, 0.0]
        """Moved so far, or promised to a transfer under way, per direction."""

    def transfer(self, size: float, direction: int) -> simpy.Event:
        """Start to move ``size`` bytes; the event fires when they have arrived."""
        done = self.env.event()
        self.bytes[direction] += size
        if size <= 0:
            done.succeed()
            return done
        self._advance()
        self._flows.append(_Flow(direction, size, done))
        self._plan()
        return done

    def _speeds(self) -> list[float]:
        """Bytes/s of one transfer in each direction."""
        n = [0, 0]
        for flow in self._flows:
            n[flow.direction] += 1
        total = list(self._rate)
        if all(n) and sum(total) > self._both:
            scale = self._both / sum(total)
            total = [t * scale for t in total]
        return [t / max(k, 1) for t, k in zip(total, n, strict=True)]

    def _advance(self) -> None:
        """Let the transfers run up to now."""
        elapsed = self.env.now - self._since
        self._since = self.env.now
        if elapsed > 0 and self._flows:
            speeds = self._speeds()
            for flow in self._flows:
                flow.left -= elapsed * speeds[flow.direction]

    def _plan(self) -> None:
        """Wake up when the next transfer ends, at the speeds of now."""
        if not self._flows:
            self._alarm = None
            return
        speeds = self._speeds()
        wait = min(max(flow.left, 0.0) / speeds[flow.direction] for flow in self._flows)
        self._alarm = self.env.process(self._ring(wait))

    def _ring(self, wait: float) -> Generator[simpy.Event, Any, None]:
        mine = self.env.active_process
        yield self.env.timeout(wait)
        if self._alarm is not mine:
            return
        self._advance()
        left = []
        for flow in self._flows:
            if flow.left <= _ROUNDING_BYTES:
                flow.done.succeed()
            else:
                left.append(flow)
        self._flows = left
        self._plan()
