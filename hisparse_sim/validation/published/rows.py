"""A line of the comparison, and what of it can be summed up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

METRICS = (
    "running_mean",
    "mean_tpot_ms",
    "total_tok_s_per_gpu",
    "output_tok_s",
    "preemptions",
    "concurrency",
    "min_host_gib",
    "miss_rate",
    "hit_rate",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure and the simulated one."""

    source: str
    case: str
    metric: str
    published: float
    simulated: float | None
    """None: ``note`` says why there is none."""
    low: float | None = None
    """Over what the source leaves open; with ``high``."""
    high: float | None = None
    note: str = ""

    @property
    def rel_error(self) -> float | None:
        """simulated / published - 1; 0 if both are 0, None if that is undefined."""
        if self.simulated is None:
            return None
        if self.published == 0:
            return 0.0 if self.simulated == 0 else None
        return self.simulated / self.published - 1

    def as_json(self) -> dict[str, Any]:
        """Of ``--json``."""
        return {
            "source": self.source,
            "case": self.case,
            "metric": self.metric,
            "published": self.published,
            "simulated": self.simulated,
            "rel_error": self.rel_error,
            "low": self.low,
            "high": self.high,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one metric of one source."""

    source: str
    metric: str
    rows: int
    median_abs: float | None
    """None: no row has an error."""
    max_abs: float | None
    without: int
    """Rows without a simulated figure, or with an undefined error."""


def summary(rows: Sequence[Row]) -> list[Errors]:
    """Median and largest absolute error of each source and metric, in order of appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.source, row.metric), []).append(row)
    found = []
    for (source, metric), group in groups.items():
        errors = [abs(e) for row in group if (e := row.rel_error) is not None]
        found.append(
            Errors(
                source,
                metric,
                len(group),
                median(errors) if errors else None,
                max(errors, default=None),
                len(group) - len(errors),
            )
        )
    return found
