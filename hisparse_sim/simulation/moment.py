"""Events at a time, where simpy knows only delays."""

from __future__ import annotations

import simpy


class _Until(float):
    """A delay until a time: added to now it is that time, not what the sum would be rounded to.

    A float below now cannot always be completed to a given one: of two sums that are neighbours as
    delays go, both may be rounded past it.
    """

    __slots__ = ()

    def __radd__(self, now: float) -> float:
        return float(self)


def at(env: simpy.Environment, when_s: float) -> simpy.Event:
    """An event at exactly this time, which must not be before now."""
    return env.timeout(_Until(max(when_s, env.now)))
