"""Runs over time as lines of text, for terminals without a display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hisparse_sim.report.run_picture import RunPicture, names
from hisparse_sim.report.series import Floats, TimeGrid
from hisparse_sim.report.sheet import time_unit
from hisparse_sim.report.tables import number

MAX_COLUMNS = 100
BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = ".:-=+*#@"
_BARS = ("│", "|")
_NUMBER = 9


class _Quantity(NamedTuple):
    title: str
    line: Callable[[RunPicture, TimeGrid], Floats | None]
    rows: Callable[[RunPicture], Floats | None]
    """Its values in the rows of the steps; none: only the line has them."""
    top: float | None = None
    """Of the scale; none: the most there is."""


_QUANTITIES = (
    _Quantity("running requests", RunPicture.running, lambda run: run.column("running")),
    _Quantity("waiting requests", RunPicture.waiting, lambda run: run.column("waiting")),
    _Quantity(
        "HBM KV, %", lambda run, grid: run.used_percent(grid, "gpu"), lambda run: _percent(run, "gpu"), 100
    ),
    _Quantity(
        "host KV, %", lambda run, grid: run.used_percent(grid, "host"), lambda run: _percent(run, "host"), 100
    ),
    _Quantity("host to GPU, GB/s", lambda run, grid: run.gb_per_s(grid, "h2d"), lambda _: None),
    _Quantity("GPU to host, GB/s", lambda run, grid: run.gb_per_s(grid, "d2h"), lambda _: None),
)


def sparklines(runs: Sequence[RunPicture], *, encoding: str | None = "utf-8") -> str:
    """Requests, memory and one GPU's link over simulated time, a block of lines a run, same scales.

    At most ``MAX_COLUMNS`` wide. A line's height goes from 0 to the most of all runs, or to 100 %; a
    space is 0. ``mean``: requests and traffic over the whole run, memory over the time of engine steps
    (as in ``summary.json``). ``min`` and ``max``: of engine steps; for traffic, and for requests of
    several replicas, of the line's own points.
    ``encoding``: of where it will be printed; plain ASCII if that has no block characters.
    """
    levels, bar = (BLOCKS, _BARS[0]) if _can(encoding, BLOCKS + _BARS[0]) else (LETTERS, _BARS[1])
    title_width = max(len(quantity.title) for quantity in _QUANTITIES)
    width = MAX_COLUMNS - title_width - 3 - 3 * _NUMBER
    end_s = max((run.end_s for run in runs), default=0.0) or 1.0
    grid = TimeGrid.over(end_s, intervals=width)
    unit, scale = time_unit(end_s)
    common, labels = names(runs)
    drawn = [[quantity.line(run, grid) for run in runs] for quantity in _QUANTITIES]
    blocks = []
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        head = ", ".join(text for text in (common, label) if text)
        if not len(run.steps):
            blocks.append(f"{head}: {run.summary.get('limit') or 'no step was taken'}"[:MAX_COLUMNS])
            continue
        shown = max(1, round(width * min(run.end_s / end_s, 1.0)))
        span = f"0 to {number(run.end_s / scale)} {unit}"
        lines = [_head(head, span, title_width + 3 + width)]
        for quantity, values in zip(_QUANTITIES, drawn, strict=True):
            mine = values[index]
            top = quantity.top or max((float(v.max()) for v in values if v is not None), default=0.0)
            if mine is None or not top or (quantity.top and not mine.any()):
                continue
            spark = _spark(mine[:shown], top, levels).ljust(width)
            numbers = "".join(f"{number(value):>{_NUMBER}}" for value in _spread(run, quantity, mine[:shown]))
            lines.append(f"{quantity.title:<{title_width}} {bar}{spark}{bar}{numbers}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _head(name: str, span: str, width: int) -> str:
    room = width - len(span) - 2
    name = name if len(name) <= room else name[: room - 3] + "..."
    heads = "".join(f"{head:>{_NUMBER}}" for head in ("min", "mean", "max"))
    return f"{name}: {span}".ljust(width) + heads


def _spark(values: Floats, top: float, levels: str) -> str:
    steps = np.ceil(np.clip(values / top, 0, 1) * len(levels) - 1e-9).astype(int)
    steps = np.where(values > 0, np.maximum(steps, 1), 0)
    return "".join(" " if step == 0 else levels[step - 1] for step in steps.tolist())


def _spread(run: RunPicture, quantity: _Quantity, line: Floats) -> tuple[float, float, float]:
    """Least, mean and most."""
    whole = quantity.line(run, TimeGrid.over(run.end_s, intervals=1))
    mean = float(whole[0]) if whole is not None else 0.0
    rows = quantity.rows(run)
    if rows is None or (len(run.parts()) > 1 and not quantity.top):
        return float(line.min()), mean, float(line.max())
    if quantity.top:
        run = run.decoding
        rows = quantity.rows(run)
        assert rows is not None
        seconds = run.column("end_s") - run.column("start_s")
        mean = float((rows * seconds).sum() / seconds.sum())
    return float(rows.min()), mean, float(rows.max())


def _percent(run: RunPicture, pool: str) -> Floats | None:
    share = run.used_share(pool)
    return None if share is None else 100 * share


def _can(encoding: str | None, text: str) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
