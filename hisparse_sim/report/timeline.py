"""What happened over simulated time: requests, memory by tier, link traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.report.run_picture import TIERS, RunPicture, names
from hisparse_sim.report.series import Floats, TimeGrid
from hisparse_sim.report.sheet import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Row,
    area,
    line,
    look,
    plain_x,
    plain_y,
    run_key,
    say,
    sheet,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PALE = "#B3D4E8"
"""BLUE, thinned: what is only kept while there is room."""
TIER_COLOURS = dict(zip(TIERS, (ORANGE, VERMILLION, BLUE, PURPLE, _PALE), strict=True))

_INTERVALS, _FEWEST = 300, 60
"""Of the time axis, and of a run that is much shorter than that."""

_UNSEEN = 0.05
"""Of the time axis: a run that is shorter leaves its panels all but empty."""

Line = tuple[str, str, Callable[[RunPicture, TimeGrid], Floats]]
"""Name, colour and values."""


def timeline(runs: Sequence[RunPicture]) -> Figure:
    """A column a run, all with the same scales: requests, KV by tier, both pools, the link."""
    time = Time(runs)
    rows = [
        *_requests(time),
        _lines(time, "preemptions so far", [_PREEMPTIONS], whole=True),
        _kv_by_tier(time),
        _gpu_by_tier(time),
        _host(time),
        _lines(time, "link of one GPU, GB/s", [_H2D, _D2H]),
    ]
    title, columns = names(runs)
    return sheet(
        [row for row in rows if row is not None],
        title=title,
        columns=time.heads(columns),
        x_title=time.x_title,
    )


def overlay(runs: Sequence[RunPicture]) -> Figure:
    """The same over each other: a line a run."""
    time = Time(runs)
    title, labels = names(runs)
    quantities = (
        ("running requests", RunPicture.running, True),
        ("waiting requests", RunPicture.waiting, True),
        ("preemptions so far", RunPicture.preemptions_so_far, True),
        ("GPU pool in use, %", lambda run, grid: run.used_percent(grid, "gpu"), False),
        ("host pool in use, %", lambda run, grid: run.used_percent(grid, "host"), False),
        ("host to GPU, GB/s a GPU", lambda run, grid: run.gb_per_s(grid, "h2d"), False),
        ("GPU to host, GB/s a GPU", lambda run, grid: run.gb_per_s(grid, "d2h"), False),
    )
    rows: list[Row] = []
    for name, values, whole in quantities:
        drawn = [values(run, time.grid(run)) for run in runs]
        if rows and not _anything(drawn):
            continue  # a panel with nothing in it for any run says so best by not being there

        def draw(
            axes: Axes, _: int, drawn: Sequence[Floats | None] = drawn, name: str = name, whole: bool = whole
        ) -> None:
            for index, (run, over_time) in enumerate(zip(runs, drawn, strict=True)):
                if over_time is not None:
                    time.plot(axes, run, over_time, **look(index, of=len(runs), points=len(over_time)))
            plain_y(axes, whole=whole, percent="%" in name)
            time.axis(axes)
            if not any(len(run.steps) for run in runs):
                say(axes, "no step was taken")

        rows.append(Row(name, 0.75, draw))
    return sheet(rows, title=title, key=run_key(labels), x_title=time.x_title)


class Time:
    """The time axis that all panels of a picture share."""

    def __init__(self, runs: Sequence[RunPicture]) -> None:
        self.runs = runs
        self.end_s = max((run.end_s for run in runs), default=0.0) or 1.0
        unit, self.scale = time_unit(self.end_s)
        self.x_title = f"simulated time, {unit}"

    def grid(self, run: RunPicture) -> TimeGrid:
        """Intervals as long as the others', or shorter: a short run has its details beside a long one."""
        end_s = run.end_s or self.end_s
        return TimeGrid.over(end_s, intervals=max(round(_INTERVALS * end_s / self.end_s), _FEWEST))

    def heads(self, columns: Sequence[str]) -> list[str]:
        """What stands above each run: of one too short to be seen beside the others, when it ended, too."""
        heads = []
        for name, run in zip(columns, self.runs, strict=True):
            unit, scale = time_unit(run.end_s)
            short = 0 < run.end_s < _UNSEEN * self.end_s
            heads.append(f"{name}, ends at {run.end_s / scale:.3g} {unit}" if short else name)
        return heads

    def middle(self, run: RunPicture) -> Floats:
        """Where the intervals of a run stand on the axis; nowhere if it has no steps."""
        edges_s = self.grid(run).edges_s if len(run.steps) else np.zeros(1)
        return np.asarray((edges_s[:-1] + edges_s[1:]) / 2 / self.scale, dtype=np.float64)

    def means(
        self, run: RunPicture, layers: dict[str, Floats], *, hold: bool, share: bool = False
    ) -> dict[str, Floats]:
        """Of quantities in each row of the steps, those over time; of a ``share``, in percent."""
        grid, scale = self.grid(run), 100.0 if share else 1.0
        return {name: scale * run.mean(grid, v, hold=hold, share=share) for name, v in layers.items()}

    def plot(self, axes: Axes, run: RunPicture, values: Floats, **how: object) -> None:
        at = self.middle(run)
        axes.plot(at, values[: len(at)], **how)  # type: ignore[arg-type]

    def stack(self, axes: Axes, run: RunPicture, layers: dict[str, Floats], colours: dict[str, str]) -> None:
        """Areas on top of each other."""
        at = self.middle(run)
        below = np.zeros(len(at))
        for name, values in layers.items():
            above = below + values[: len(at)]
            axes.fill_between(at, below, above, color=colours[name], linewidth=0)
            below = above

    def axis(self, axes: Axes) -> None:
        abreast = min(len(self.runs), 4)
        plain_x(axes, self.end_s / self.scale, ticks=6 if abreast < 3 else 4)


# Two lines of a panel: one dark and thin, one light, wide and below it, so that both are seen where they
# are one. Dashes would be lost where a line goes up and down.
_WIDE = {ORANGE: 1.6}
_RUNNING: Line = ("running", BLUE, RunPicture.running)
_WAITING: Line = ("waiting", ORANGE, RunPicture.waiting)
_PREEMPTIONS: Line = ("", VERMILLION, RunPicture.preemptions_so_far)
_H2D: Line = ("host to GPU", BLUE, lambda run, grid: run.gb_per_s(grid, "h2d"))
_D2H: Line = ("GPU to host", ORANGE, lambda run, grid: run.gb_per_s(grid, "d2h"))
TOWERS = 4
"""One line above another by this factor leaves nothing to see of that."""


def _requests(time: Time) -> list[Row | None]:
    """Running and waiting requests in one panel, or in two if they are of different sizes."""
    most = [
        max((float(values(run, time.grid(run)).max()) for run in time.runs), default=0.0)
        for values in (RunPicture.running, RunPicture.waiting)
    ]
    if max(most) <= TOWERS * min(most) or not min(most):
        return [_lines(time, "requests", [_RUNNING, _WAITING], whole=True, always=True)]
    return [
        _lines(time, "running requests", [("", *_RUNNING[1:])], whole=True, always=True),
        _lines(time, "waiting requests", [("", *_WAITING[1:])], whole=True),
    ]


def _lines(
    time: Time, title: str, lines: Sequence[Line], *, whole: bool = False, always: bool = False
) -> Row | None:
    """A row with some quantities as lines, without those that no run has (unless it is there ``always``)."""
    found = [(entry, [entry[2](run, time.grid(run)) for run in time.runs]) for entry in lines]
    found = [(entry, drawn) for entry, drawn in found if always or _anything(drawn)]
    if not found:
        return None
    widths = {colour: _WIDE.get(colour, 1.0) if len(found) > 1 else 1.0 for (_, colour, _), _ in found}

    def draw(axes: Axes, number: int) -> None:
        run = time.runs[number]
        for (_, colour, _), drawn in reversed(found):
            time.plot(axes, run, drawn[number], color=colour, linewidth=widths[colour])
        plain_y(axes, whole=whole)
        time.axis(axes)
        if always and not len(run.steps):
            say(axes, "no step was taken")

    key = [line(name, color=colour, linewidth=widths[colour]) for (name, colour, _), _ in found if name]
    return Row(title, 0.75, draw, key)


def _kv_by_tier(time: Time) -> Row | None:
    """Tokens of running requests that have a copy on the GPU, and those that only the host has."""
    tiers = [time.means(run, run.kv_tokens(), hold=False) for run in time.runs]
    if not any("host only" in tier for tier in tiers):
        return None  # the GPU pool tells as much

    def draw(axes: Axes, number: int) -> None:
        time.stack(axes, time.runs[number], tiers[number], colours)
        plain_y(axes)
        time.axis(axes)

    colours = {"on the GPU": BLUE, "host only": SKY}
    return Row("KV of the running, tokens", 0.75, draw, [area(n, c) for n, c in colours.items()])


def _gpu_by_tier(time: Time) -> Row:
    percents = [time.means(run, run.gpu_tiers(), hold=True, share=True) for run in time.runs]
    names = [name for name in TIERS if any(name in tiers for tiers in percents)]

    def draw(axes: Axes, number: int) -> None:
        time.stack(axes, time.runs[number], percents[number], TIER_COLOURS)
        plain_y(axes, percent=True)
        time.axis(axes)

    key = [area(name, TIER_COLOURS[name]) for name in names] if len(names) > 1 else []
    return Row("GPU pool in use, % of blocks" if not key else "GPU pool, % of blocks", 0.75, draw, key)


def _host(time: Time) -> Row | None:
    """What of the host pool is in use, and what of that only the host has."""
    used = [run.used_percent(time.grid(run), "host") for run in time.runs]
    only = [run.host_only_percent(time.grid(run)) for run in time.runs]
    if not _anything(used):
        return None

    def draw(axes: Axes, number: int) -> None:
        run = time.runs[number]
        for values, colour in ((used[number], GREEN), (only[number], SKY)):
            if values is not None:
                time.stack(axes, run, {"": values}, {"": colour})
        plain_y(axes, percent=True)
        time.axis(axes)

    if not _anything(only):
        return Row("host pool in use, % of blocks", 0.75, draw)
    key = [area("in use", GREEN), area("host only", SKY)]
    return Row("host pool, % of blocks", 0.75, draw, key)


def _anything(lines: Sequence[Floats | None]) -> bool:
    return any(values is not None and bool(np.any(values > 0)) for values in lines)
