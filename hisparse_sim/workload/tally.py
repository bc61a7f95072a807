"""Values counted instead of kept: exact quantiles in memory that does not grow with their number."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from hisparse_sim.workload.lengths import Floats, Ints

_LEAST = 1e-9
_FIRST = int(np.float64(_LEAST).view(np.int64) >> 40) - 1
"""Of the bits of a float: less this, sign, exponent and the first 12 bits behind the point make a key."""
_DENSE = 2**22
"""Keys from here on are kept one by one."""

_TOGETHER = 8192

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


class Tally:
    """How often each value came: whole numbers exactly, others to 13 bits, which is within 0.025 %."""

    def __init__(self) -> None:
        self._counts: Ints = np.zeros(1, dtype=np.int64)
        self._large: Counter[float] = Counter()
        self._whole = True
        self._waiting: list[Ints | Floats] = []
        self._waiting_count = 0
        self._counted = 0
        self._sum = 0.0
        self._sum_of_squares = 0.0

    def add(self, values: Ints | Floats) -> None:
        """Count some more values >= 0, all of one kind."""
        if not len(values):
            return
        self._waiting.append(values)
        self._waiting_count += len(values)
        if self._waiting_count >= _TOGETHER:
            self._count()

    def _count(self) -> None:
        """Count what waits: many values at a time, as each time costs as much as there are keys."""
        if not self._waiting:
            return
        values = np.concatenate(self._waiting)
        self._waiting, self._waiting_count = [], 0
        floats = values.astype(np.float64)
        self._counted += len(values)
        self._sum += float(floats.sum())
        self._sum_of_squares += float(np.square(floats).sum())  # a dot product would start threads
        self._whole = values.dtype.kind == "i"
        keys = values if self._whole else np.where(floats < _LEAST, 0, (floats.view(np.int64) >> 40) - _FIRST)
        if int(keys.max()) >= _DENSE:
            self._large.update(floats[keys >= _DENSE].tolist())
            keys = keys[keys < _DENSE]
        found = np.bincount(keys, minlength=len(self._counts))
        found[: len(self._counts)] += self._counts
        self._counts = found

    def values(self) -> tuple[Floats, Ints]:
        """Each value in ascending order, and how often it came."""
        self._count()
        keys = np.flatnonzero(self._counts)
        large = sorted(self._large)
        floats = keys.astype(np.float64)
        if not self._whole:
            floats = np.where(keys > 0, ((keys + _FIRST) << 40).view(np.float64), 0.0)
        counts = [self._large[value] for value in large]
        return np.append(floats, large), np.append(self._counts[keys], np.array(counts, dtype=np.int64))

    def quantile(self, levels: npt.ArrayLike) -> Floats:
        """As ``numpy.quantile`` of all values: linear between neighbours."""
        values, counts = self.values()
        places = np.round(np.asarray(levels, dtype=np.float64) * (self.count - 1), 6)
        ends = np.cumsum(counts)
        low = values[np.searchsorted(ends, np.floor(places), side="right")]
        high = values[np.searchsorted(ends, np.ceil(places), side="right")]
        return np.asarray(low + (high - low) * (places - np.floor(places)))

    @property
    def count(self) -> int:
        """How many values."""
        return self._counted + self._waiting_count

    @property
    def sum(self) -> float:
        """Of all values."""
        self._count()
        return self._sum

    @property
    def mean(self) -> float:
        """Of all values; 0 without any."""
        return self.sum / self.count if self.count else 0.0

    @property
    def variation(self) -> float | None:
        """Standard deviation over mean; none without values or at a mean of 0."""
        if not self.count or not self.mean:
            return None
        variance = max(0.0, self._sum_of_squares / self.count - self.mean**2)
        return float(np.sqrt(variance) / self.mean)

    def summary(self) -> dict[str, float]:
        """Mean, extremes and quantiles; empty without values."""
        if not self.count:
            return {}
        levels = (0.0, *QUANTILES, 1.0)
        names = ("min", *(f"p{round(100 * level)}" for level in QUANTILES), "max")
        return {"mean": self.mean} | dict(zip(names, self.quantile(levels).tolist(), strict=True))


class TimeBins:
    """How many came when: bins that double in width when time runs out of them."""

    BINS = 512

    def __init__(self) -> None:
        self.width_s = 1.0
        self.counts: Ints = np.zeros(self.BINS, dtype=np.int64)
        self.last_s = 0.0

    def add(self, times_s: Floats) -> None:
        """Count arrivals."""
        if not len(times_s):
            return
        self.last_s = max(self.last_s, float(times_s.max()))
        while self.last_s >= self.BINS * self.width_s:
            self.counts[: self.BINS // 2] = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts[self.BINS // 2 :] = 0
            self.width_s *= 2
        self.counts += np.bincount((times_s / self.width_s).astype(np.int64), minlength=self.BINS)
