"""The picture of ``curve``: each quantity relative to the smallest run of its panel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bench.curve import Found


class Panel(NamedTuple):
    """``points``: what is on the x axis, and what that took."""

    title: str
    x_title: str
    points: Sequence[tuple[int, Found]]


def draw(rows: Sequence[Sequence[Panel]], path: Path) -> None:
    """Write ``path`` with .png and .svg: all axes logarithmic, panels of a column over the same x.

    Every panel has a point.
    """
    from matplotlib.figure import Figure

    from hisparse_sim.report.sheet import COLUMN_IN, style

    with style():
        size_in = COLUMN_IN * len(rows[0]), 0.4 + 2.0 * len(rows)
        figure = Figure(figsize=size_in, layout="constrained")
        axes = figure.subplots(len(rows), len(rows[0]), sharex="col", sharey=True, squeeze=False)
        for row, panels in zip(axes, rows, strict=True):
            row[0].set_ylabel("relative to the first point")
            for ax, panel in zip(row, panels, strict=True):
                _panel(ax, panel)
        for ax, panel in zip(axes[-1], rows[-1], strict=True):
            ax.set_xlabel(f"{panel.x_title} of a request")
        ticks = [sorted({x for panels in rows for x, _ in panels[i].points}) for i in range(len(rows[0]))]
        for ax, xs in zip(axes[0], ticks, strict=True):
            ax.set_xticks(xs, [_short(x) for x in xs])
            ax.minorticks_off()
        axes[0][0].yaxis.set_major_formatter(lambda y, _: f"×{y:,g}")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
        figure.savefig(path.with_suffix(".png"), dpi=200)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _panel(ax: Axes, panel: Panel) -> None:
    from hisparse_sim.report.sheet import BLUE, GREEN, ORANGE, VERMILLION

    xs = [x for x, _ in panel.points]
    found = [one for _, one in panel.points]
    for label, marker, colour, values in (
        ("tokens and pages", "s", ORANGE, [one.counts.pages for one in found]),
        ("engine steps", "^", GREEN, [one.counts.steps for one in found]),
        ("decisions", "D", BLUE, [one.counts.decisions for one in found]),
        ("CPU time (line: least to most)", "o", VERMILLION, [one.cpu_s.middle for one in found]),
    ):
        ys = [value / values[0] for value in values]
        ax.plot(xs, ys, color=colour, marker=marker, markersize=3.5, label=label)
    first = found[0].cpu_s.middle
    ax.vlines(xs, *zip(*((s.low / first, s.high / first) for _, s in found), strict=True), color=VERMILLION)
    ax.set(xscale="log", yscale="log")
    ax.set_title(panel.title, loc="left")


def _short(tokens: float) -> str:
    for unit, name in ((10**6, "M"), (1024, "k"), (1000, "k")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens / unit:g}{name}"
    return f"{tokens:,g}"
