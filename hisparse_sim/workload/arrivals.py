"""When things arrive: renewal processes in a time that runs as fast as the rate.

Every process of ``scenario.arrivals`` is the same construction: gaps of mean 1, all equal, exponential
or gamma, are summed up to the number of expected arrivals, and that is turned into seconds by the inverse
of the cumulated rate. Gaps of a Poisson process thus stay exponential under any schedule of rates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from hisparse_sim.scenario.arrivals import (
    ArrivalsSpec,
    DailySpec,
    EvenSpec,
    GammaSpec,
    PiecewiseSpec,
    PoissonArrivalsSpec,
)
from hisparse_sim.workload.lengths import Floats

DAY_S = 86_400.0
_PIECE = 4096


class Rate(Protocol):
    """A rate over time, as the inverse of its integral."""

    def when_s(self, expected: Floats) -> Floats:
        """Seconds by which so many arrivals are expected; infinite if never."""
        ...


class ConstantRate:
    """Always ``rate_per_s``."""

    def __init__(self, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s

    def when_s(self, expected: Floats) -> Floats:
        """See ``Rate``."""
        return expected / self.rate_per_s


class ScheduledRate:
    """Steps of a schedule, repeated or ended."""

    def __init__(self, spec: PiecewiseSpec) -> None:
        self._ends_s = np.cumsum([0.0, *(step.duration_s for step in spec.steps)])
        self._sums = np.cumsum([0.0, *(step.duration_s * step.rate_per_s for step in spec.steps)])
        self._repeat = spec.repeat

    def when_s(self, expected: Floats) -> Floats:
        """See ``Rate``."""
        total, length_s = float(self._sums[-1]), float(self._ends_s[-1])
        rounds = np.floor(expected / total) if self._repeat else np.zeros(len(expected))
        within = expected - rounds * total
        # In a step of rate 0 the sum stands still: searchsorted finds the step after it.
        step = np.clip(np.searchsorted(self._sums, within, side="right") - 1, 0, len(self._sums) - 2)
        rate = np.diff(self._sums)[step] / np.diff(self._ends_s)[step]
        with np.errstate(divide="ignore", invalid="ignore"):
            at_s = self._ends_s[step] + np.where(rate > 0, (within - self._sums[step]) / rate, 0.0)
        at_s = rounds * length_s + at_s
        return at_s if self._repeat else np.where(expected < total, at_s, np.inf)


class DailyRate:
    """mean x (1 + swing x cos(2 pi (hour - peak) / 24)), integrated in closed form, inverted by bisection."""

    def __init__(self, spec: DailySpec) -> None:
        self.mean_per_s = spec.mean_rate_per_s
        self.swing = spec.swing
        self._turn = 2 * math.pi / DAY_S
        self._start = 2 * math.pi * (spec.start_hour - spec.peak_hour) / 24

    def expected(self, at_s: Floats) -> Floats:
        """Arrivals expected until ``at_s``."""
        waves = np.sin(self._start + self._turn * at_s) - math.sin(self._start)
        return np.asarray(self.mean_per_s * (at_s + self.swing * waves / self._turn))

    def when_s(self, expected: Floats) -> Floats:
        """See ``Rate``. The answer lies within a day of that of the mean rate."""
        low = np.maximum(0.0, expected / self.mean_per_s - DAY_S)
        high = expected / self.mean_per_s + DAY_S
        for _ in range(60):
            middle = (low + high) / 2
            late = self.expected(middle) >= expected
            high, low = np.where(late, middle, high), np.where(late, low, middle)
        return high


def arrival_times_s(spec: ArrivalsSpec, rng: np.random.Generator, count: int | None) -> Iterator[float]:
    """The first ``count`` arrivals in seconds, in order; none: until they end."""
    rate, gaps = _RATES[type(spec)](spec), _gaps(spec)
    so_far, left = 0.0, math.inf if count is None else count
    while left > 0:
        piece = int(min(_PIECE, left))
        steps = gaps(rng, piece)
        steps[0] += so_far
        expected = np.cumsum(steps)
        so_far = float(expected[-1])
        times = rate.when_s(expected).tolist()
        yield from itertools.takewhile(math.isfinite, times)
        if not math.isfinite(times[-1]):
            return
        left -= piece


def _gaps(spec: ArrivalsSpec) -> Callable[[np.random.Generator, int], Floats]:
    """Gaps of mean 1."""
    if isinstance(spec, EvenSpec):
        return lambda _, count: np.ones(count)
    shape = 1.0 if isinstance(spec, PoissonArrivalsSpec) else spec.burstiness
    if shape == 1.0:
        return lambda rng, count: rng.standard_exponential(count)
    return lambda rng, count: rng.standard_gamma(shape, count) / shape


def _constant(spec: Any) -> Rate:
    return ConstantRate(spec.rate_per_s)


_RATES: dict[type, Callable[[Any], Rate]] = {
    EvenSpec: _constant,
    PoissonArrivalsSpec: _constant,
    GammaSpec: _constant,
    PiecewiseSpec: ScheduledRate,
    DailySpec: DailyRate,
}
