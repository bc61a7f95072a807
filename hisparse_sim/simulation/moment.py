"""Events at a time, where simpy knows only delays."""

from __future__ import annotations

import simpy


class _Until(float):
    """A delay until a time: added to now it is that time, not what the sum would be rounded to.

    There is not always a delay for which now + delay is rounded to the time that is wanted.
    """

    __slots__ = ()

    def __radd__(self, now: float) -> float:
        return float(self)


def at(env: simpy.Environment, when_s: float) -> simpy.Event:
    """An event at exactly this time, or now if that is past."""
    return env.timeout(_Until(max(when_s, env.now)))


class Clock(simpy.Environment):
    """Simulated time that whoever is alone may set forward.

    That is no event: who drives the clock says how often it may be done until it wants to look again.
    """

    def __init__(self) -> None:
        super().__init__(0.0)
        self.left = 0
        """Events, and times that the clock may be set forward, until the next look; work without either
        may be subtracted."""

    def go(self, moments: int) -> None:
        """Run so many events; the time is set forward instead where nothing else is due."""
        self.left = moments
        while self.left > 0:
            self.left -= 1
            self.step()

    def is_free(self, until_s: float) -> bool:
        """Whether nothing is due until then, and nobody wants to look."""
        due = self._queue
        return self.left > 0 and (not due or due[0][0] > until_s)

    def skip_to(self, when_s: float) -> bool:
        """Make it then, without an event, if it ``is_free``.

        Only for the last callback of an event: those after it would be called too late.
        """
        if not self.is_free(when_s):
            return False
        self.left -= 1
        self._now = when_s
        return True
