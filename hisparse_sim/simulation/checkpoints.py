"""When a long run leaves what it has so far, so that it can be looked at while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from hisparse_sim.simulation.result import Result

SHARE = 0.03
"""Of the time that checkpoints may take. Each holds all there is so far, so they become slower as the run
grows, and then seldomer."""


class Checkpoints:
    """Hands results to ``write`` every ``every_s`` wall-clock seconds, or less often if that takes long."""

    def __init__(
        self,
        write: Callable[[Result], None],
        every_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._write = write
        self._every_s = every_s
        self._clock = clock
        self._next_s = clock() + every_s

    def look(self, so_far: Callable[[], Result]) -> None:
        """See whether it is time."""
        began_s = self._clock()
        if began_s < self._next_s:
            return
        self._write(so_far())
        took_s = self._clock() - began_s
        self._next_s = began_s + max(self._every_s, took_s / SHARE)
