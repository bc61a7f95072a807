"""Published figures against simulated ones, as a picture and a table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.report.figure_files import save_figure
from hisparse_sim.report.sheet import COLOURS

_MARKERS = "os^Dvp"


def save(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write ``rows.csv`` and ``published.png`` and ``.svg``. ``rows``: as ``validate published --json``.

    A point above the diagonal is simulated too high; the band is +-10 %. Raises InputError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        table = folder / "rows.csv"
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return [table, *_draw(rows, folder)]
    except OSError as error:
        raise InputError(f"cannot be written here ({error.strerror or error})", where=str(folder)) from None


def _draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    drawn = [r for r in rows if r["simulated"] and r["published"]]
    metrics = list(dict.fromkeys(r["metric"] for r in drawn))
    sources = list(dict.fromkeys(r["source"] for r in drawn))
    columns = min(3, max(1, len(metrics)))
    lines = -(-len(metrics) // columns)
    size = 2.4 * columns, 2.4 * max(1, lines) + 0.2 * len(sources) + 0.3
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(max(1, lines), columns, squeeze=False)
    for axis in axes.flat[len(metrics) :]:
        axis.set_visible(False)
    for axis, metric in zip(axes.flat, metrics, strict=False):
        values = []
        for i, source in enumerate(sources):
            mine = [r for r in drawn if (r["metric"], r["source"]) == (metric, source)]
            x, y = [r["published"] for r in mine], [r["simulated"] for r in mine]
            values += x + y
            for r in mine:
                if r["low"] is not None:
                    axis.plot(
                        [r["published"]] * 2,
                        [r["low"], r["high"]],
                        color=COLOURS[i % len(COLOURS)],
                        lw=0.8,
                        alpha=0.6,
                    )
            axis.plot(x, y, _MARKERS[i % len(_MARKERS)], color=COLOURS[i % len(COLOURS)], ms=4)
        low, high = min(values) / 1.4, max(values) * 1.4
        axis.plot([low, high], [low, high], color="0.4", lw=0.8)
        axis.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="0.88", lw=0)
        axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        axis.set_title(metric, fontsize=8)
        axis.tick_params(labelsize=6)
        axis.tick_params(axis="x", rotation=45)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            side.set_minor_locator(NullLocator())
        axis.set_xlabel("published", fontsize=7)
        axis.set_ylabel("simulated (line: low to high)", fontsize=7)
    handles = [
        Line2D([], [], marker=_MARKERS[i % len(_MARKERS)], ls="", color=COLOURS[i % len(COLOURS)], label=s)
        for i, s in enumerate(sources)
    ]
    figure.legend(handles=handles, fontsize=6, loc="outside lower center", ncols=1, frameon=False)
    return save_figure(figure, folder, "published")
