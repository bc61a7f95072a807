"""Where requests spent their lives: how many were in each phase, and a bar a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hisparse_sim.report.phases import PHASES, Spans, at_a_time, packed, phases
from hisparse_sim.report.run_picture import RunPicture, names
from hisparse_sim.report.sheet import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    VERMILLION,
    Row,
    area,
    fits,
    line,
    plain_y,
    say,
    sheet,
    tick_label_in,
)
from hisparse_sim.report.timeline import TOWERS, Time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASE_COLOURS = dict(zip(PHASES, (GREY, SKY, ORANGE, BLUE, VERMILLION), strict=True))
_LABEL_IN = 0.81
ROWS = 64
"""Bars above each other that can still be told apart in print."""
_NAMED = 20
_RASTER = 2000
"""Bars from which on a vector picture holds them as pixels."""


def gantt(runs: Sequence[RunPicture]) -> Figure:
    """A column a run: requests by phase over time, and below it a bar a request.

    Up to ``ROWS`` requests have a row each, in order of arrival. More are packed: a row holds requests
    that follow each other, so there are as many rows as requests alive at once, and of a run's more
    than ``ROWS`` rows every so-manieth is drawn. The upper panel always counts all requests.
    """
    time = Time(runs)
    lives = [phases(run.requests, run.end_s) for run in runs]
    shown = [name for name in PHASES if any(len(life[name].start_s) for life in lives)]
    placed = [_rows(run) for run in runs]
    rows = [int(place.max(initial=0)) + 1 for place in placed]
    every = [-(-count // ROWS) for count in rows]
    count = max((-(-n // step) for n, step in zip(rows, every, strict=True)), default=1)
    most = max((len(run.requests) for run in runs), default=0)
    one_each = most <= ROWS
    named = len(runs) == 1 and most <= _NAMED and "request_id" in runs[0].requests
    failed = [_failed(run) for run in runs]
    ids = runs[0].requests["request_id"] if named else ()
    labels = [fits(str(name), _LABEL_IN) for name in ids]

    def bars(axes: Axes, number: int) -> None:
        place, step = placed[number], every[number]
        height = 0.8 if count <= ROWS // 2 else 0.9
        drawn = {name: _sampled(lives[number][name], place, step) for name in shown}
        raster = sum(len(spans.start_s) for spans in drawn.values()) > _RASTER
        for name, spans in drawn.items():
            _bars(axes, spans, height, time.scale, PHASE_COLOURS[name], raster)
        lost = failed[number][place[failed[number]] % step == 0]
        if len(lost):
            at_s = np.asarray(runs[number].requests["arrival_s"], dtype=np.float64)[lost]
            axes.plot(
                at_s / time.scale,
                place[lost] // step,
                **_FAILED,  # type: ignore[arg-type]
                clip_on=False,
            )
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        if named:
            axes.set_yticks(range(len(labels)), labels)
        else:
            axes.set_yticks([])
        time.axis(axes)
        if not len(runs[number].steps):
            say(axes, "no step was taken")

    if one_each:
        title = "requests, in order of arrival"
    else:
        title = "requests; a row holds one after the other"
        if max(every) > 1:
            title += f"; 1 row of {' to '.join(map(str, sorted({min(every), max(every)})))}"
    mark = [line("failed", **_FAILED)] if any(len(lost) for lost in failed) else []
    height_in = min(max(0.11 * count, 0.45), 3.0)
    title_all, columns = names(runs)
    return sheet(
        [*_counts(time, lives, shown), Row(title, height_in, bars)],
        title=title_all,
        columns=time.heads(columns),
        key=[*(area(name, PHASE_COLOURS[name]) for name in shown), *mark],
        x_title=time.x_title,
        left_in=max([0.4, *(tick_label_in(label) + 0.13 for label in labels)]),
    )


def _counts(time: Time, lives: Sequence[dict[str, Spans]], shown: Sequence[str]) -> list[Row]:
    """How many requests are in each phase: on top of each other, unless those in the queue dwarf the rest."""
    layers = [
        {name: at_a_time(life[name], time.grid(run)) for name in shown}
        for run, life in zip(time.runs, lives, strict=True)
    ]

    def row(title: str, names: Sequence[str]) -> Row:
        def draw(axes: Axes, number: int) -> None:
            time.stack(axes, time.runs[number], {name: layers[number][name] for name in names}, PHASE_COLOURS)
            plain_y(axes, whole=True)
            time.axis(axes)

        return Row(title, 0.75, draw)

    def most(names: Sequence[str]) -> float:
        return max(
            (float(np.sum([counts[name] for name in names], axis=0).max()) for counts in layers), default=0.0
        )

    others = [name for name in shown if name != "queue"]
    if "queue" not in shown or not others or most(["queue"]) <= TOWERS * most(others):
        return [row("requests by phase", shown)]
    return [row("requests in the queue", ["queue"]), row("other requests, by phase", others)]


_FAILED = {"marker": "x", "color": BLACK, "linestyle": "", "markersize": 3, "markeredgewidth": 0.8}


def _rows(run: RunPicture) -> npt.NDArray[np.int64]:
    """The row of each request."""
    if len(run.requests) <= ROWS:
        return np.arange(len(run.requests))
    arrival = np.asarray(run.requests["arrival_s"], dtype=np.float64)
    finish = np.asarray(run.requests["finish_s"], dtype=np.float64)
    over = np.where(np.isnan(finish), run.end_s, finish)
    lost = _failed(run)
    over[lost] = arrival[lost]
    return packed(arrival, over)


def _failed(run: RunPicture) -> npt.NDArray[np.int64]:
    if "status" not in run.requests:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.asarray(run.requests["status"] == "failed", dtype=bool))


def _sampled(spans: Spans, place: npt.NDArray[np.int64], every: int) -> Spans:
    """The spans in every so-manieth row, with that row's number instead of their request's."""
    row = place[spans.request]
    kept = row % every == 0
    return Spans(row[kept] // every, spans.start_s[kept], spans.end_s[kept])


def _bars(axes: Axes, spans: Spans, height: float, scale: float, colour: str, raster: bool) -> None:
    from matplotlib.collections import PolyCollection

    if not len(spans.start_s):
        return
    left, right = spans.start_s / scale, spans.end_s / scale
    low, high = spans.request - height / 2, spans.request + height / 2
    corners = np.stack(
        [np.column_stack(pair) for pair in ((left, low), (left, high), (right, high), (right, low))], axis=1
    )
    axes.add_collection(
        PolyCollection(list(corners), facecolors=colour, linewidths=0, rasterized=raster), autolim=False
    )
