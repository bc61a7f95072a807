"""Measuring several times, and saying so: median and spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

from bench.setup import Setup

T = TypeVar("T")


class Spread(NamedTuple):
    """Median, least and most of some measurements."""

    middle: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """``12.3 (11.9–14.0)``, each by ``spec``; the median alone if there is nothing around it."""
        middle, low, high = (format(value, spec) for value in self)
        return middle if low == high else f"{middle} ({low}–{high})"


def spread(values: Iterable[float]) -> Spread:
    """Of one measurement or more."""
    several = list(values)
    return Spread(median(several), min(several), max(several))


def alternate(cases: Mapping[str, Callable[[], T]], setup: Setup) -> dict[str, list[T]]:
    """Measure each case, then each again: what else the machine does meanwhile hits all alike."""
    found: dict[str, list[T]] = {name: [] for name in cases}
    for turn in range(setup.repeats):
        for name, case in cases.items():
            setup.say(f"{name}: {turn + 1} of {setup.repeats}")
            found[name].append(case())
    setup.say("")
    return found
