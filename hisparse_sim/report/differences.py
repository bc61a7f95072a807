"""Runs or sweeps against the first of them: differences, and how far chance alone could make them.

Of runs the 95 % interval is a bootstrap over sessions, whose requests are not independent of each other;
of sweeps Welch's over seeds, Student's t with the degrees of freedom of Welch and Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hisparse_sim.errors import InputError
from hisparse_sim.planning.spread import t_95

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

RUN_METRICS = tuple(
    (name, point) for name in ("ttft_s", "tpot_s", "e2e_s") for point in ("mean", "p50", "p95")
)
SWEEP_METRICS = {
    "run": ("output_tokens_per_s", "total_tokens_per_s_per_gpu", "ttft_s.p95", "tpot_s.p50", "goodput"),
    "estimate": ("requests", "tpot_s", "tokens_per_s"),
}
_RESAMPLES, _MOST_VALUES = 1000, 2 * 10**7
_TAIL = 2.5


@dataclass(frozen=True, slots=True)
class Difference:
    """Of ``metric`` in ``other`` less in the first. ``low`` and ``high``: 95 %, NaN where not known."""

    point: str
    metric: str
    first: float
    other: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """In the metric's unit."""
        return self.other - self.first

    @property
    def clear(self) -> bool | None:
        """Whether the interval leaves out 0; none where there is no interval."""
        if math.isnan(self.low) or math.isnan(self.high):
            return None
        return self.low > 0 or self.high < 0


def run_differences(first: pd.DataFrame, other: pd.DataFrame) -> list[Difference]:
    """Of completed requests, from two ``requests.parquet``."""
    random = np.random.default_rng(0)
    found = []
    for name, point in RUN_METRICS:
        sides = [_values(frame, name) for frame in (first, other)]
        if any(not len(values) for values, _ in sides):
            continue
        before, after = (_figure(values, np.ones(len(values)), point) for values, _ in sides)
        drawn = [_bootstrap(values, sessions, point, random) for values, sessions in sides]
        low, high = (math.nan, math.nan)
        if all(len(d) for d in drawn):
            count = min(map(len, drawn))
            low, high = np.percentile(drawn[1][:count] - drawn[0][:count], [_TAIL, 100 - _TAIL])
        found.append(Difference("", f"{name}.{point}", before, after, float(low), float(high)))
    return found


def _values(frame: pd.DataFrame, name: str) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Values in ascending order, and the number of each one's session."""
    known = frame[frame[name].notna()]
    by = known["session"] if "session" in known else known.index.to_series()
    sessions = np.unique(by.astype(str).to_numpy(), return_inverse=True)[1]
    order = np.argsort(known[name].to_numpy(), kind="stable")
    return known[name].to_numpy(dtype=float)[order], sessions[order]


def _figure(values: Floats, weights: Floats, point: str) -> float:
    """Mean, or quantile as if each value came ``weights`` times."""
    if point == "mean":
        return float(np.average(values, weights=weights))
    reached = np.cumsum(weights)
    place = np.interp(float(point[1:]) / 100 * (reached[-1] - 1), reached - 1, np.arange(len(values)))
    return float(np.interp(place, np.arange(len(values)), values))


def _bootstrap(
    values: Floats, sessions: npt.NDArray[np.int64], point: str, random: np.random.Generator
) -> Floats:
    """The figure of resampled sessions; none where there are fewer than 2."""
    count = int(sessions.max()) + 1
    if count < 2:
        return np.empty(0)
    resamples = int(min(_RESAMPLES, max(50, _MOST_VALUES // len(values))))
    found = []
    for _ in range(resamples):
        often = np.bincount(random.integers(count, size=count), minlength=count)
        weights = often[sessions].astype(float)
        kept = weights > 0
        found.append(_figure(values[kept], weights[kept], point))
    return np.array(found)


def sweep_differences(
    first: pd.DataFrame, other: pd.DataFrame, fields: Sequence[str], metrics: Sequence[str]
) -> list[Difference]:
    """Of the points that both have, by the values of ``fields``, over their seeds."""
    keys = list(fields)
    sides = [
        frame[frame["status"] == "done"].groupby(keys, sort=True, dropna=False) for frame in (first, other)
    ]
    groups = [dict(iter(side)) for side in sides]
    found = []
    for key in (key for key in groups[0] if key in groups[1]):
        values = key if isinstance(key, tuple) else (key,)
        point = ", ".join(f"{f.rsplit('.', 1)[-1]} {v}" for f, v in zip(fields, values, strict=True))
        for metric in metrics:
            a, b = (side[key][metric].dropna().to_numpy(dtype=float) for side in groups)
            if len(a) and len(b):
                half = _welch(a, b)
                gap = float(b.mean() - a.mean())
                found.append(
                    Difference(point, metric, float(a.mean()), float(b.mean()), gap - half, gap + half)
                )
    return found


def _welch(a: Floats, b: Floats) -> float:
    """Half of the 95 % interval of the difference of two means; NaN with a single seed."""
    if len(a) < 2 or len(b) < 2:
        return math.nan
    each = [values.var(ddof=1) / len(values) for values in (a, b)]
    total = float(sum(each))
    if total == 0:
        return 0.0
    below = sum(e**2 / (len(values) - 1) for e, values in zip(each, (a, b), strict=True))
    return t_95(max(1, math.floor(total**2 / below))) * math.sqrt(total)


def read_sweep(folder: Path) -> tuple[pd.DataFrame, list[str], str]:
    """Rows, varied fields and kind of what ``sweep --out`` wrote. Raises ``InputError``."""
    import json

    import pandas as pd

    about = folder / "_sweep.json"
    try:
        data = json.loads(about.read_text(encoding="utf-8"))
        kind, varied = str(data["kind"]), [str(name) for name in data["varied"]]
        frame: pd.DataFrame = pd.read_parquet(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"is no sweep that can be read ({error})", where=str(folder)) from None
    if kind not in SWEEP_METRICS or "status" not in frame:
        raise InputError("is a sweep of another version", where=str(about))
    return frame, [name for name in varied if name != "seed"], kind


def differences_text(title: str, found: Sequence[Difference]) -> str:
    """A table; ``*`` where the 95 % interval leaves out 0."""
    from hisparse_sim.report.tables import number

    rows = [("", "first", "this", "difference", "95 % interval")]
    before = ""
    for each in found:
        if each.point != before:
            rows.append((each.point, "", "", "", ""))
            before = each.point
        share = f" ({each.difference / each.first:+.1%})" if each.first else ""
        mark = " *" if each.clear else ""
        interval = "-" if each.clear is None else f"{number(each.low)} to {number(each.high)}{mark}"
        gap = f"{'+' if each.difference > 0 else ''}{number(each.difference)}{share}"
        rows.append((f"  {each.metric}", number(each.first), number(each.other), gap, interval))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])


def save_sweeps(
    sweeps: Sequence[tuple[str, pd.DataFrame]], field: str, metrics: Sequence[str], folder: Path
) -> list[Path]:
    """Each metric over ``field``, a line a sweep, with the range of what is not on the axis. PNG and SVG."""
    from matplotlib.figure import Figure

    from hisparse_sim.report.figure_files import save_figure
    from hisparse_sim.report.sheet import COLOURS, MARKERS

    figure = Figure(figsize=(7.0, 2.2 * -(-len(metrics) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(metrics) // 2), 2, squeeze=False).ravel()
    for axes, metric in zip(panels, metrics, strict=False):
        for index, (label, frame) in enumerate(sweeps):
            done = frame[(frame["status"] == "done") & frame[metric].notna()]
            each = done.groupby(field)[metric].agg(["mean", "min", "max"])
            bars = [each["mean"] - each["min"], each["max"] - each["mean"]]
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            axes.errorbar(each.index, each["mean"], yerr=bars, ms=3, lw=1, capsize=2, label=label, **look)
        axes.set_title(metric.replace("$", r"\$"), fontsize=8, loc="left")
        axes.set_xlabel(field.replace("$", r"\$"), fontsize=7)
        axes.tick_params(labelsize=7)
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, [t.replace("$", r"\$") for t in labels], fontsize=7, loc="outside lower center", ncols=3
    )
    return save_figure(figure, folder, "compare")
