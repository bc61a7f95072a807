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
)
from hisparse_sim.report.timeline import Time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASE_COLOURS = dict(zip(PHASES, (GREY, SKY, ORANGE, BLUE, VERMILLION), strict=True))
ROWS = 64
"""Bars above each other that can still be told apart in print."""
_NAMED = 20
_RASTER = 2000
"""Bars from which on a vector picture holds them as pixels."""


def gantt(runs: Sequence[RunPicture]) -> Figure:
    """A column a run: requests by phase over time, and below it a bar a request.

    Up to ``ROWS`` requests have a row each, in order of arrival. More are packed: a row holds requests
    that follow each other, so there are as many rows as requests alive at once, and of more than
    ``ROWS`` rows every so-manieth is drawn. The upper panel always counts all requests.
    """
    time = Time(runs)
    lives = [phases(run.requests, run.end_s) for run in runs]
    shown = [name for name in PHASES if any(len(life[name].start_s) for life in lives)]
    placed = [_rows(run) for run in runs]
    rows = max((int(place.max()) + 1 for place in placed if len(place)), default=1)
    every = -(-rows // ROWS)
    count = -(-rows // every)
    most = max((len(run.requests) for run in runs), default=0)
    one_each = most <= ROWS
    named = len(runs) == 1 and most <= _NAMED and "request_id" in runs[0].requests
    failed = [_failed(run) for run in runs]

    def counts(axes: Axes, number: int) -> None:
        layers = {name: at_a_time(lives[number][name], time.grid) for name in shown}
        time.stack(axes, runs[number], layers, PHASE_COLOURS)
        plain_y(axes, whole=True)
        time.axis(axes)

    def bars(axes: Axes, number: int) -> None:
        place = placed[number]
        height = 0.8 if count <= ROWS // 2 else 0.9
        drawn = {name: _sampled(lives[number][name], place, every) for name in shown}
        raster = sum(len(spans.start_s) for spans in drawn.values()) > _RASTER
        for name, spans in drawn.items():
            _bars(axes, spans, height, time.scale, PHASE_COLOURS[name], raster)
        lost = failed[number][place[failed[number]] % every == 0]
        if len(lost):
            at_s = np.asarray(runs[number].requests["arrival_s"], dtype=np.float64)[lost]
            axes.plot(
                at_s / time.scale,
                place[lost] // every,
                **_FAILED,  # type: ignore[arg-type]
                clip_on=False,
            )
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        if named:
            labels = [fits(str(name), 0.61) for name in runs[number].requests["request_id"]]
            axes.set_yticks(range(len(labels)), labels)
        else:
            axes.set_yticks([])
        time.axis(axes)
        if not len(runs[number].steps):
            say(axes, "no step was taken")

    if one_each:
        title = "requests, in order of arrival"
    else:
        title = "requests; a row holds one after the other" + (f"; 1 row of {every}" if every > 1 else "")
    mark = [line("failed", **_FAILED)] if any(len(lost) for lost in failed) else []
    height_in = min(max(0.11 * count, 0.45), 3.0)
    title_all, columns = names(runs)
    return sheet(
        [Row("requests by phase", 0.75, counts), Row(title, height_in, bars)],
        title=title_all,
        columns=columns,
        key=[*(area(name, PHASE_COLOURS[name]) for name in shown), *mark],
        x_title=time.x_title,
        left_in=0.85 if named else 0.4,
    )


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
