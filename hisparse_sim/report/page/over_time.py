"""The timelines of a page: each quantity as its mean in equal intervals, with the least and the most there.

A reader zooms, so an interval is far finer than a pixel; what it averages away stays visible as a band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisparse_sim.report.latency import steps_of
from hisparse_sim.report.run_picture import TIERS, RunPicture
from hisparse_sim.report.series import Floats, TimeGrid

MOST_INTERVALS = 3000
"""Of one run; about 1 s of an hour."""
_ALL_INTERVALS, _FEWEST = 18_000, 200
"""Of all runs of a page, which keeps it below 5 MB, and of one of very many."""
_LATENCY_POINTS = 400
_LATENCIES = (
    ("ttft_s", "To the first token", "s", 1.0),
    ("tpot_s", "A token of the answer", "ms", 1e3),
    ("e2e_s", "From arrival to the last token", "s", 1.0),
)
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Quantity:
    """One line or layer: ``curve`` gives (mean, least, most), the two last none where there is no band."""

    name: str
    colour: int
    curve: Callable[[RunPicture, TimeGrid], tuple[Floats, Floats | None, Floats | None] | None]


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of one run; ``stacked``: layers on each other. ``top``: of its axis, where that is fixed.

    ``together``: beside other runs each of its quantities has a chart of its own, with a line a run.
    """

    title: str
    unit: str
    quantities: tuple[Quantity, ...]
    stacked: bool = False
    top: float | None = None
    together: bool = True


def _running(run: RunPicture, grid: TimeGrid) -> tuple[Floats, Floats | None, Floats | None]:
    return _summed(run, grid, run.column("running"), run.running(grid))


def _with_band(
    run: RunPicture, grid: TimeGrid, values: Floats, mean: Floats
) -> tuple[Floats, Floats, Floats]:
    least, most = run.extremes(grid, values)
    return mean, np.fmin(least, mean), np.fmax(most, mean)


def _summed(
    run: RunPicture, grid: TimeGrid, values: Floats, mean: Floats
) -> tuple[Floats, Floats | None, Floats | None]:
    """A sum over engines has no band: what is least and most of each does not say what is of the sum."""
    return (mean, None, None) if run.several else _with_band(run, grid, values, mean)


def _waiting(run: RunPicture, grid: TimeGrid) -> tuple[Floats, Floats | None, Floats | None]:
    return _summed(run, grid, run.column("waiting"), run.waiting(grid))


def _alone(values: Callable[[RunPicture, TimeGrid], Floats | None]) -> Callable[[RunPicture, TimeGrid], Any]:
    def curve(run: RunPicture, grid: TimeGrid) -> tuple[Floats, None, None] | None:
        found = values(run, grid)
        return None if found is None else (found, None, None)

    return curve


def _used(pool: str) -> Callable[[RunPicture, TimeGrid], Any]:
    def curve(run: RunPicture, grid: TimeGrid) -> tuple[Floats, Floats, Floats] | None:
        run = run.decoding
        share = run.used_share(pool)
        if share is None:
            return None
        return _with_band(run, grid, 100 * share, run.mean(grid, 100 * share, hold=True, share=True))

    return curve


def _prefilling(
    curve: Callable[[RunPicture, TimeGrid], Any],
) -> Callable[[RunPicture, TimeGrid], Any]:
    """The same of the engines that only prefill; none where there are none."""

    def theirs(run: RunPicture, grid: TimeGrid) -> Any:
        return None if run.prefilling is None else curve(run.prefilling, grid)

    return theirs


def _used_by_prefill(run: RunPicture, grid: TimeGrid) -> tuple[Floats, Floats, Floats] | None:
    share = run.used_share("gpu")
    if share is None:
        return None
    engines = len(run.parts())
    return _with_band(run, grid, 100 * share, run.mean(grid, 100 * share, hold=True) / engines)


def _layer(layers: str, name: str, *, share: bool) -> Callable[[RunPicture, TimeGrid], Any]:
    """A layer of what the method ``layers`` of a run gives; a ``share`` holds between steps, too."""

    def values(run: RunPicture, grid: TimeGrid) -> Floats | None:
        found = getattr(run, layers)()
        if name not in found:
            return None
        return (100 if share else 1) * run.mean(grid, found[name], hold=share, share=share)

    return _alone(values)


def _step_time(run: RunPicture, grid: TimeGrid) -> tuple[Floats, Floats, Floats]:
    """Milliseconds a step: of an interval those of all steps in it over their number; NaN without any."""
    run = run.decoding if run.decoding.steps.size else run
    start, end = run.column("start_s"), run.column("end_s")
    steps = run.column("steps") if "steps" in run.steps else np.ones(len(start))
    often = run.rate_per_s(grid, steps)
    busy = run.rate_per_s(grid, end - start)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(often > 1e-9, 1e3 * busy / often, np.nan)
        each = 1e3 * (end - start) / steps
    least, most = run.extremes(grid, each)
    return mean, np.fmin(least, mean), np.fmax(most, mean)


def _tokens(column: str) -> Callable[[RunPicture, TimeGrid], Any]:
    """Tokens a second; ``decodes`` counts each request of each step."""

    def values(run: RunPicture, grid: TimeGrid) -> Floats:
        amount = run.column(column) * (run.column("steps") if column == "decodes" else 1)
        return run.rate_per_s(grid, amount)

    return _alone(values)


_TIER_COLOURS = dict(zip(TIERS, (5, 2, 1, 4, 6), strict=True))
PANELS = (
    Panel("Requests", "", (Quantity("running", 1, _running), Quantity("waiting", 5, _waiting))),
    Panel("Preemptions so far", "", (Quantity("preemptions", 2, _alone(RunPicture.preemptions_so_far)),)),
    Panel(
        "Step time",
        "ms",
        (
            Quantity("step time", 1, _step_time),
            Quantity("of engines that only prefill", 4, _prefilling(_step_time)),
        ),
    ),
    Panel(
        "GPU pool in use",
        "% of blocks",
        (
            Quantity("in use", 1, _used("gpu")),
            Quantity("of engines that only prefill", 4, _prefilling(_used_by_prefill)),
        ),
        top=100,
    ),
    Panel(
        "What the GPU pool holds",
        "% of blocks",
        tuple(Quantity(name, _TIER_COLOURS[name], _layer("gpu_tiers", name, share=True)) for name in TIERS),
        stacked=True,
        top=100,
        together=False,
    ),
    Panel(
        "KV of the running",
        "tokens",
        (
            Quantity("on the GPU", 1, _layer("kv_tokens", "on the GPU", share=False)),
            Quantity("host only", 6, _layer("kv_tokens", "host only", share=False)),
        ),
        stacked=True,
        together=False,
    ),
    Panel(
        "Host pool",
        "% of blocks",
        (
            Quantity("in use", 3, _used("host")),
            Quantity("only copy of running requests", 6, _alone(RunPicture.host_only_percent)),
        ),
        top=100,
    ),
    Panel(
        "Link of one GPU",
        "GB/s",
        (
            Quantity("host to GPU", 1, _alone(lambda run, grid: run.gb_per_s(grid, "h2d"))),
            Quantity("GPU to host", 5, _alone(lambda run, grid: run.gb_per_s(grid, "d2h"))),
        ),
    ),
    Panel(
        "Tokens a second",
        "",
        (
            Quantity("prompt tokens computed", 4, _tokens("prefill_tokens")),
            Quantity("decodes", 3, _tokens("decodes")),
        ),
    ),
)


def over_time(runs: Sequence[RunPicture], labels: Sequence[str]) -> dict[str, Any]:
    """The charts as plain data: ``runs`` (``dt_s`` and curves by quantity) and ``panels``.

    A quantity that is 0 in all runs is left out, and a panel without any. Numbers have 4 digits.
    """
    most = max(_FEWEST, min(MOST_INTERVALS, _ALL_INTERVALS // max(1, len(runs))))
    drawn: list[dict[str, Any]] = []
    for run, label in zip(runs, labels, strict=True):
        grid = TimeGrid.over(run.end_s or 1.0, intervals=min(most, max(_FEWEST, 4 * len(run.steps))))
        curves = {}
        for panel in PANELS:
            for quantity in panel.quantities:
                found = quantity.curve(run, grid) if len(run.steps) else None
                curves[f"{panel.title}/{quantity.name}"] = None if found is None else _packed(*found)
        drawn.append({"name": label, "end_s": run.end_s, "dt_s": grid.width_s, "curves": curves})
    panels = []
    for panel in PANELS:
        keys = [(q, f"{panel.title}/{q.name}") for q in panel.quantities]
        shown = [(q, key) for q, key in keys if any(_anything(each["curves"][key]) for each in drawn)]
        if shown:
            panels.append(
                {
                    "title": panel.title,
                    "unit": panel.unit,
                    "stacked": panel.stacked,
                    "top": panel.top,
                    "together": panel.together,
                    "lines": [{"name": q.name, "colour": q.colour, "key": key} for q, key in shown],
                }
            )
        for _, key in set(keys) - set(shown):
            for each in drawn:
                del each["curves"][key]
    return {"runs": drawn, "panels": panels}


def latencies(runs: Sequence[RunPicture], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Shares of completed requests by their times, a line a run, in percent."""
    charts = []
    for column, title, unit, scale in _LATENCIES:
        lines = []
        for run, label in zip(runs, labels, strict=True):
            values = np.sort(run.finite(column)) * scale
            if len(values):
                times, shares = steps_of(values, points=_LATENCY_POINTS)
                lines.append({"name": label, "x": numbers(times), "y": numbers(shares)})
        if lines:
            charts.append({"title": title, "unit": unit, "lines": lines})
    return charts


def numbers(values: Floats) -> list[float | int | None]:
    """As JSON has them: 4 digits, whole ones without a point, null for what is undefined."""
    found: list[float | int | None] = []
    for value in values.tolist():
        if not np.isfinite(value):
            found.append(None)
            continue
        rounded = float(f"{value:.{_DIGITS}g}")
        found.append(int(rounded) if rounded.is_integer() else rounded)
    return found


def _packed(mean: Floats, least: Floats | None, most: Floats | None) -> dict[str, Any]:
    found = {"mean": numbers(mean)}
    if least is not None and most is not None:
        low, high = numbers(least), numbers(most)
        if low != found["mean"] or high != found["mean"]:
            found |= {"low": low, "high": high}
    return found


def _anything(curve: dict[str, Any] | None) -> bool:
    return curve is not None and any(curve["mean"])
