"""Quantities over time, from runs of equal steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """``edges_s``: n + 1 ends of n equal intervals."""

    edges_s: Floats

    @classmethod
    def over(cls, end_s: float, *, intervals: int) -> TimeGrid:
        """``intervals`` equal ones from 0 to ``end_s`` > 0."""
        return cls(np.linspace(0.0, end_s, intervals + 1))

    @property
    def width_s(self) -> float:
        """Of one interval."""
        return float(self.edges_s[1] - self.edges_s[0])

    def mean(self, start_s: Floats, end_s: Floats, value: Floats, *, hold: bool) -> Floats:
        """Time-weighted mean in each interval of what is ``value`` from ``start_s`` to ``end_s``.

        Rows are in order and do not overlap. Between them it is the value before (``hold``) or 0.
        """
        if not len(start_s):
            return np.zeros(len(self.edges_s) - 1)
        if hold:
            end_s = np.append(start_s[1:], max(float(end_s[-1]), float(self.edges_s[-1])))
        return self._increments(start_s, end_s, value * (end_s - start_s)) / self.width_s

    def rate_per_s(self, start_s: Floats, end_s: Floats, amount: Floats) -> Floats:
        """``amount`` of each row, spread evenly over the row, per second in each interval."""
        if not len(start_s):
            return np.zeros(len(self.edges_s) - 1)
        return self._increments(start_s, end_s, amount) / self.width_s

    def extremes(self, start_s: Floats, end_s: Floats, value: Floats) -> tuple[Floats, Floats]:
        """Least and most of ``value`` among the rows in each interval; NaN where there is none."""
        first = np.searchsorted(end_s, self.edges_s[:-1], side="right")
        after = np.searchsorted(start_s, self.edges_s[1:], side="left")
        pairs = np.column_stack((first, after)).ravel()
        some = after > first
        # ``reduceat`` takes from each index to the next: every other result is of an interval.
        padded = np.append(value, np.nan)
        return (
            np.where(some, np.fmin.reduceat(padded, pairs)[::2], np.nan),
            np.where(some, np.fmax.reduceat(padded, pairs)[::2], np.nan),
        )

    def _increments(self, start_s: Floats, end_s: Floats, amount: Floats) -> Floats:
        times = np.column_stack((start_s, end_s)).ravel()
        total = np.concatenate(([0.0], np.cumsum(amount)))
        sums = np.column_stack((total[:-1], total[1:])).ravel()
        return np.diff(np.interp(self.edges_s, times, sums, left=0.0, right=float(total[-1])))
