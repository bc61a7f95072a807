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
    """Simulated time that whoever is alone may set forward."""

    def skip_to(self, when_s: float) -> bool:
        """Make it then, without an event, if nothing is due until then; False if something is.

        Only for the last callback of an event: those after it would be called too late.
        """
        if self.peek() <= when_s:
            return False
        self._now = when_s
        return True
