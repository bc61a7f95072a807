"""How long requests took: the share of them within a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.report.run_picture import RunPicture, names
from hisparse_sim.report.series import Floats
from hisparse_sim.report.sheet import Row, look, plain_x, run_key, say, sheet, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = (
    ("ttft_s", "share of requests by time to first token, s", 1.0),
    ("tpot_s", "by time per output token, ms", 1e3),
    ("e2e_s", "by time from arrival to the last token, s", 1.0),
)
_POINTS = 1000
"""Of a line; more cannot be seen."""


def latency(runs: Sequence[RunPicture]) -> Figure:
    """Completed requests: to the first token, per token, end to end; the runs over each other."""

    def row(column: str, title: str, scale: float) -> Row:
        def draw(axes: Axes, _: int) -> None:
            drawn = [np.sort(run.finite(column)) * scale for run in runs]
            for index, values in enumerate(drawn):
                if len(values):
                    times, shares = steps_of(values)
                    how = look(index, of=len(runs), points=len(times))
                    axes.step(times, shares, where="post", **how)
            if not any(map(len, drawn)):
                say(axes, "no request completed")
            _x(axes, np.concatenate(drawn) if drawn else np.zeros(0))
            axes.set_ylim(0, 104)
            axes.set_yticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])

        return Row(title, 0.95, draw, own_x=True)

    title, labels = names(runs)
    return sheet([row(*column) for column in _COLUMNS], title=title, key=run_key(labels))


def steps_of(values: Floats, *, points: int = _POINTS) -> tuple[Floats, Floats]:
    """Where the share within a time rises and to how many percent, from 0, for sorted ``values``."""
    count = len(values)
    rank = np.arange(count)
    if count > points:
        rank = np.unique(np.linspace(0, count - 1, points).round().astype(np.int64))
    share = 100 * (rank + 1) / count
    return np.concatenate((values[:1], values[rank])), np.concatenate(([0.0], share))


def _x(axes: Axes, values: Floats) -> None:
    """A log scale where values span enough for one, with plain numbers at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if low <= 0 or high < 5 * low:
        plain_x(axes, 1.05 * high or 1.0)
        return
    axes.set_xscale("log")
    axes.set_xlim(low / 1.1, high * 1.1)
    decades = np.log10(high / low)
    subs = (1, 2, 5) if decades < 2.5 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=7 if decades > 7 else 20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
