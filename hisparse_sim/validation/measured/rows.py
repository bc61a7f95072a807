"""A measured figure beside the simulated one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hisparse_sim.validation.measured.evidence import Evidence
from hisparse_sim.validation.measured.simulated import ORDER

_UNWEIGHED = (
    *("requests_completed", "requests_failed", "duration_s", "prompt_tokens", "output_tokens"),
    *("host_to_device_bytes", "device_to_host_bytes"),
)
"""Never called the largest error: what was asked, or counted over another time or set of GPUs."""
_SLACK = {"rate": 0.02, "usage": 0.02, "_s": 1e-3, "count": 1.0}
"""Differences of this much mean nothing, whatever their share."""


@dataclass(frozen=True, slots=True)
class Row:
    """``source``: which input says so. ``corrected``: simulated with what the inputs contradict set right."""

    metric: str
    source: str
    measured: float
    simulated: float | None
    corrected: float | None = None

    @property
    def rel_error(self) -> float | None:
        """simulated / measured - 1; 0 if both are 0, None if that is undefined."""
        return _error(self.measured, self.simulated)

    @property
    def corrected_error(self) -> float | None:
        """The same of ``corrected``."""
        return _error(self.measured, self.corrected)

    @property
    def size(self) -> float:
        """How far apart, as the absolute logarithm of the ratio; 0 for what is not weighed."""
        return apart(self.metric, self.measured, self.simulated)

    def as_json(self) -> dict[str, Any]:
        """Of ``--json``."""
        return {
            "metric": self.metric,
            "source": self.source,
            "measured": self.measured,
            "simulated": self.simulated,
            "rel_error": self.rel_error,
            "corrected": self.corrected,
            "corrected_rel_error": self.corrected_error,
        }


def rows_of(
    evidence: Sequence[Evidence], simulated: Mapping[str, float], corrected: Mapping[str, float]
) -> list[Row]:
    """A row a measured figure, those of one name together."""
    return [
        Row(name, e.kind, e.figures[name], simulated.get(name), corrected.get(name))
        for name in ORDER
        for e in evidence
        if name in e.figures
    ]


def largest(rows: Sequence[Row]) -> Row | None:
    """The row with the largest error that says something; none if all agree."""
    most = max(rows, key=lambda row: row.size, default=None)
    return most if most is not None and most.size > math.log(1.02) else None


def apart(metric: str, measured: float, simulated: float | None) -> float:
    """|log ratio|, with ``_SLACK`` added to both, so that nothing and next to nothing agree."""
    if simulated is None or metric in _UNWEIGHED:
        return 0.0
    kind = next((k for k in ("rate", "usage") if k in metric), "")
    kind = kind or ("_s" if "_s_" in metric and not metric.endswith("per_s") else "count")
    slack = _SLACK[kind]
    return abs(math.log((simulated + slack) / (measured + slack)))


def _error(measured: float, simulated: float | None) -> float | None:
    if simulated is None:
        return None
    if measured == 0:
        return 0.0 if simulated == 0 else None
    return simulated / measured - 1
