"""Pictures of runs: what happened over time, and how long requests took. PNG and SVG.

Colours are those of Okabe and Ito, told apart with any colour vision; each run has a line style too.
Sizes are for one column of a page. The same runs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hisparse_sim.report.run_files import RunFolder, label_of
from hisparse_sim.report.series import Floats, TimeGrid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")
WIDTH_IN = 5.2
GB = 1e9


@dataclass(frozen=True, slots=True)
class RunPicture:
    """What is drawn of a run: its ``summary.json`` and two tables."""

    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame

    @classmethod
    def read(cls, folder: RunFolder) -> RunPicture:
        """From the files of a run. Raises InputError."""
        return cls(folder.summary(), folder.requests(), folder.steps())

    @property
    def end_s(self) -> float:
        """When the last step ended."""
        return float(self.steps["end_s"].iloc[-1]) if len(self.steps) else 0.0

    def column(self, name: str) -> Floats:
        """A column of the steps, zeros where the run has none."""
        if name not in self.steps:
            return np.zeros(len(self.steps))
        return np.asarray(self.steps[name], dtype=np.float64)

    def used_share(self, free: str, total: str) -> Floats | None:
        """Share of a pool in use, from its free blocks; none when the run has no such pool.

        The most that was ever free counts as all of it, when the summary does not say.
        """
        left = self.column(free)
        size = (self.summary.get("pools") or {}).get(total) or (left.max() if len(left) else 0)
        return np.clip(1 - left / size, 0, 1) if size else None


def save_plots(runs: Sequence[RunPicture], folder: Path) -> list[Path]:
    """Draw ``timeline`` and ``latency`` of one run or several overlaid, as .png and .svg in ``folder``.

    Raises OSError when the folder cannot be written.
    """
    import matplotlib as mpl

    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "lines.linewidth": 1.2,
        "svg.hashsalt": "hisparse-sim",
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(style):
        for name, figure in (("timeline", timeline(runs)), ("latency", latency(runs))):
            for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = folder / f"{name}.{suffix}"
                figure.savefig(path, dpi=180, metadata=metadata)
                figure.set_layout_engine("none")  # laid out once is enough: it takes most of the time
                written.append(path)
    return written


def timeline(runs: Sequence[RunPicture]) -> Figure:
    """Requests running and waiting, preemptions, memory in use and link traffic, over simulated time."""
    end_s = max((run.end_s for run in runs), default=0.0) or 1.0
    unit, scale = _time_unit(end_s)
    grid = TimeGrid.over(end_s)
    middle = (grid.edges_s[:-1] + grid.edges_s[1:]) / 2 / scale
    panels: list[tuple[str, Callable[[RunPicture], Floats | None]]] = [
        ("running\nrequests", lambda run: _mean(run, grid, run.column("running"), hold=False)),
        ("waiting\nrequests", lambda run: _mean(run, grid, run.column("waiting"), hold=False)),
        ("preemptions\nso far", lambda run: _count(run, grid)),
        (
            "GPU KV\nin use, %",
            lambda run: _percent(run, grid, run.used_share("gpu_free_blocks", "num_gpu_blocks")),
        ),
        (
            "host KV\nin use, %",
            lambda run: _percent(run, grid, run.used_share("host_free_blocks", "num_host_blocks")),
        ),
        ("host to GPU\nGB/s a GPU", lambda run: _gb_per_s(run, grid, "h2d_bytes")),
        ("GPU to host\nGB/s a GPU", lambda run: _gb_per_s(run, grid, "d2h_bytes")),
    ]
    drawn = [(title, [values(run) for run in runs]) for title, values in panels]
    # A panel with nothing in it for any run says so best by not being there.
    drawn = [(title, lines) for title, lines in drawn if title.startswith("running") or _anything(lines)]
    figure, axes = _stack(len(drawn), height_in=1.05, share_x=True)
    for axis, (title, lines) in zip(axes, drawn, strict=True):
        for index, (run, values) in enumerate(zip(runs, lines, strict=True)):
            if values is None:
                continue
            # A run that ended earlier stops there.
            shown = grid.edges_s[1:] <= max(run.end_s * (1 + 1e-9), grid.width_s)
            axis.plot(middle[shown], values[shown], **_look(index))
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        axis.locator_params(axis="y", nbins=4)
        if "%" in title:
            axis.set_ylim(0, 105)
    if not any(len(run.steps) for run in runs):
        _say(axes[0], "no step was taken")
    figure.align_ylabels(axes)
    axes[-1].set_xlabel(f"simulated time, {unit}")
    axes[-1].set_xlim(0, end_s / scale)
    _legend(figure, runs)
    return figure


def latency(runs: Sequence[RunPicture]) -> Figure:
    """Share of completed requests within a time: to the first token, per token, end to end."""
    figure, axes = _stack(3, height_in=1.5, share_x=False)
    columns = (
        ("ttft_s", "time to first token, s", 1.0),
        ("tpot_s", "time per output token, ms", 1e3),
        ("e2e_s", "end to end, s", 1.0),
    )
    for axis, (column, title, scale) in zip(axes, columns, strict=True):
        empty = True
        for index, run in enumerate(runs):
            values = _finite(run.requests, column) * scale
            if not len(values):
                continue
            empty = False
            values = np.sort(values)
            shares = np.arange(1, len(values) + 1) / len(values)
            axis.step(
                np.concatenate((values[:1], values)),
                np.concatenate(([0.0], shares)),
                where="post",
                **_look(index),
            )
        if empty:
            _say(axis, "no request completed")
        _log_axis(axis)
        axis.set_xlabel(title)
        axis.set_ylabel("share")
        axis.set_ylim(0, 1.02)
    _legend(figure, runs)
    return figure


def _mean(run: RunPicture, grid: TimeGrid, values: Floats, *, hold: bool) -> Floats:
    return grid.mean(run.column("start_s"), run.column("end_s"), values, hold=hold)


def _count(run: RunPicture, grid: TimeGrid) -> Floats:
    per_s = grid.rate_per_s(run.column("start_s"), run.column("end_s"), run.column("preemptions"))
    return np.cumsum(per_s) * grid.width_s


def _percent(run: RunPicture, grid: TimeGrid, share: Floats | None) -> Floats | None:
    return None if share is None else _mean(run, grid, 100 * share, hold=True)


def _gb_per_s(run: RunPicture, grid: TimeGrid, column: str) -> Floats:
    return grid.rate_per_s(run.column("start_s"), run.column("end_s"), run.column(column)) / GB


def _anything(lines: Sequence[Floats | None]) -> bool:
    return any(values is not None and bool(np.any(values > 0)) for values in lines)


def _finite(frame: pd.DataFrame, column: str) -> Floats:
    if column not in frame:
        return np.zeros(0)
    values = np.asarray(frame[column], dtype=np.float64)
    return values[np.isfinite(values)]


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}


def _time_unit(end_s: float) -> tuple[str, float]:
    for unit, scale in (("h", 3600.0), ("min", 60.0)):
        if end_s >= 5 * scale:
            return unit, scale
    return "s", 1.0


def _stack(count: int, *, height_in: float, share_x: bool) -> tuple[Figure, list[Axes]]:
    """Panels above each other, without a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in * count + 0.9), layout="constrained")
    return figure, list(figure.subplots(count, 1, sharex=share_x, squeeze=False)[:, 0])


def _say(axis: Axes, words: str) -> None:
    axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes, backgroundcolor="white")


def _log_axis(axis: Axes) -> None:
    """A log scale where values span enough for one, with plain numbers at its ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    lines = [np.asarray(line.get_xdata(), dtype=np.float64) for line in axis.get_lines()]
    values = np.concatenate(lines) if lines else np.zeros(0)
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high < 5 * low:
        axis.set_xlim(left=0.0)
        return
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, runs: Sequence[RunPicture]) -> None:
    """One legend above all panels; what all runs have in common is the title."""
    title, labels = _names(runs)
    if len(runs) == 1:
        figure.suptitle(title, fontsize=9)
        return
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **_look(index)) for index, label in enumerate(labels)]
    columns = 2 if max(map(len, labels)) < 30 else 1
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, title=title or None)


def _names(runs: Sequence[RunPicture]) -> tuple[str, list[str]]:
    """A title for all, and what tells each from the others."""
    labels = [label_of(run.summary).split("\n") for run in runs]
    if len(runs) == 1:
        return ", ".join(labels[0]), [""]
    common = labels[0][0] if len({label[0] for label in labels}) == 1 else ""
    names = [", ".join(label[1:] if common else label) or common for label in labels]
    return common, [
        name if len(run.steps) else f"{name} (nothing ran)" for name, run in zip(names, runs, strict=True)
    ]
