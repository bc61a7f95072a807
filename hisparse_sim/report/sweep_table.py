"""A sweep for a terminal: a line a point, several seeds as mean and half of the 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "run": (
        ("running_mean", "running", 1.0),
        ("total_tokens_per_s_per_gpu", "tok/s/GPU", 1.0),
        ("ttft_s.p95", "TTFT p95 s", 1.0),
        ("tpot_s.p50", "TPOT p50 ms", 1e3),
        ("preemptions", "preempt", 1.0),
    ),
    "estimate": (
        ("context_tokens", "context", 1.0),
        ("requests", "requests", 1.0),
        ("tpot_s", "TPOT ms", 1e3),
        ("tokens_per_s", "tok/s", 1.0),
    ),
}
"""Column, heading and factor."""
MOST_ROWS = 60


def sweep_table(frame: pd.DataFrame, varied: Sequence[str], *, estimate: bool) -> str:
    """At most ``MOST_ROWS`` points; the others are in the dataset."""
    columns = COLUMNS["estimate" if estimate else "run"]
    last = "limit" if estimate else "verdict"
    fields = [name for name in varied if name in frame]
    heads = [*(name.rsplit(".", 1)[-1] for name in fields), *(head for _, head, _ in columns), last]
    rows = [tuple(heads)]
    ordered = frame.sort_values(fields, kind="stable") if fields else frame
    groups = ordered.groupby(fields, sort=False, dropna=False) if fields else [((), ordered)]
    for values, group in islice(groups, MOST_ROWS):
        cells = [_shown(value) for value in values]
        if (group["status"] != "done").all():
            rows.append((*cells, *("-" for _ in columns), "refused"))
            continue
        cells += [_mean(group[name] * factor) for name, _, factor in columns]
        counts = group[last].value_counts()
        rows.append((*cells, str(counts.index[0]) if len(counts) else "-"))
    more = len(groups) - MOST_ROWS
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    if more > 0:
        lines.append(f"... and {more:,} more points")
    return "\n".join(lines)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mean(values: pd.Series[float]) -> str:
    from hisparse_sim.planning.spread import t_95

    known = values.dropna()
    if known.empty:
        return "-"
    mean = float(known.mean())
    digits = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 10 else 2
    if (known == known.round()).all() and known.nunique() == 1:
        return f"{mean:,.0f}"
    if len(known) < 2:
        return f"{mean:,.{digits}f}"
    half = t_95(len(known) - 1) * float(known.std(ddof=1)) / len(known) ** 0.5
    return f"{mean:,.{digits}f} ± {half:,.{digits}f}"
