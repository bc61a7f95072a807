"""A picture of a workload before it is simulated: how long, how often, how far apart. PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.report.sheet import BLUE, COLUMN_IN, FONT_PT, GREEN, PURPLE, VERMILLION, printable, style
from hisparse_sim.workload.facts import Facts
from hisparse_sim.workload.tally import Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 400
"""A curve of more values is drawn through so many."""
_BARS = 60
_TITLE = 55
"""Characters of a title that fit on a line."""


def save_picture(facts: Facts, out: Path, *, title: str) -> list[Path]:
    """Draw ``facts`` to ``out``; without .png or .svg at its end, to both. The files written.

    Raises InputError for another ending and OSError when a file cannot be written.
    """
    suffix = out.suffix.lower()
    if suffix not in ("", ".png", ".svg"):
        raise InputError(f"ends in {suffix}; pictures are .png or .svg", where=f"--out {out}")
    paths = [out] if suffix else [out.with_name(f"{out.name}{s}") for s in (".png", ".svg")]
    with style():
        figure = picture(facts, title)
        for path in paths:
            metadata: dict[str, None] = (
                {"Software": None} if path.suffix.lower() == ".png" else {"Date": None}
            )
            figure.savefig(path, dpi=200, metadata=metadata)
    return paths


def picture(facts: Facts, title: str) -> Figure:
    """Panels above each other, those with nothing to show left out."""
    from matplotlib.figure import Figure

    draw = [_lengths]
    if facts.summary()["sessions_per_s"] is not None:
        draw.append(_arrivals)
    if facts.turns.count and facts.turns.quantile(1.0) > 1:
        draw.append(_turns)
    if facts.think_time_s.count or facts.gap_s.count:
        draw.append(_pauses)
    figure = Figure(figsize=(COLUMN_IN, 1.45 * len(draw) + 0.25), layout="constrained")
    for panel, axes in zip(draw, figure.subplots(len(draw), 1, squeeze=False)[:, 0], strict=True):
        panel(facts, axes)
    counts = ", ".join(
        f"{count:,} {what}{'s' if count != 1 else ''}"
        for count, what in ((facts.sessions, "session"), (facts.prompt_tokens.count, "request"))
    )
    shown = title if len(title) <= _TITLE else f"{title[: _TITLE - 3]}..."
    figure.suptitle(f"{printable(shown)}\n{counts}", fontsize=FONT_PT)
    return figure


def _lengths(facts: Facts, axes: Axes) -> None:
    tallies = (
        ("prompt", facts.prompt_tokens),
        ("new of it", facts.new_tokens),
        ("output", facts.output_tokens),
    )
    _shares(axes, tallies, "tokens of a request")


def _turns(facts: Facts, axes: Axes) -> None:
    _shares(axes, (("requests", facts.turns),), "requests of a session")


def _pauses(facts: Facts, axes: Axes) -> None:
    tallies = [("before a request", facts.think_time_s), ("between sessions", facts.gap_s)]
    shown = [(name, tally) for name, tally in tallies if tally.count]
    _shares(axes, tuple(shown), "pause, s" if len(shown) > 1 else f"pause {shown[0][0]}, s")


def _shares(axes: Axes, tallies: tuple[tuple[str, Tally], ...], title: str) -> None:
    """The share of values up to x, on a log scale if they span enough; zeros then stand at its left edge."""
    from matplotlib.ticker import NullFormatter

    found = [tally.values() for _, tally in tallies]
    all_values = np.concatenate([values for values, _ in found])
    positive = all_values[all_values > 0]
    wide = len(positive) > 0 and float(positive.max()) > 20 * float(positive.min())
    left = float(positive.min()) / 2 if wide else 0.0
    looks = zip((BLUE, VERMILLION, GREEN), ("-", "--", "-."), strict=True)
    for (name, tally), (values, counts), (colour, dashes) in zip(tallies, found, looks, strict=False):
        shares = np.cumsum(counts) / tally.count
        places = np.searchsorted(shares, np.linspace(0, 1, _POINTS)).clip(0, len(values) - 1)
        shown = np.unique(places)
        x = np.maximum(values[shown], left)
        axes.step(
            np.append(x[:1], x),
            np.append(0.0, shares[shown]),
            where="post",
            color=colour,
            linestyle=dashes,
            label=name,
        )
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.05 * float(all_values.max()) or 1.0)
    axes.set_xlabel(title)
    axes.set_ylabel("share up to")
    axes.set_ylim(0, 1.02)
    axes.grid(visible=True, linewidth=0.4, color="#dddddd")
    if len(tallies) > 1:
        axes.legend(frameon=False, handlelength=1.8, loc="best")


def _arrivals(facts: Facts, axes: Axes) -> None:
    """Sessions a second, over the time of arrival."""
    bins = facts.arrivals
    used = int(bins.last_s / bins.width_s) + 1
    merged = max(1, -(-used // _BARS))
    counts = np.add.reduceat(bins.counts[:used], np.arange(0, used, merged))
    width_s = merged * bins.width_s
    unit, scale = next(
        ((u, s) for u, s in (("h", 3600.0), ("min", 60.0)) if bins.last_s >= 3 * s), ("s", 1.0)
    )
    edges_s = np.minimum(np.arange(len(counts) + 1) * width_s, max(bins.last_s, bins.width_s))
    if len(counts) > 1 and edges_s[-1] - edges_s[-2] < width_s / 2:  # too short for a rate of its own
        counts = np.append(counts[:-2], counts[-2:].sum())
        edges_s = np.delete(edges_s, -2)
    edges = edges_s / scale
    axes.stairs(counts / np.diff(edges_s), edges, fill=True, color=PURPLE, alpha=0.6)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"time of arrival, {unit}")
    axes.set_ylabel("sessions/s")
    axes.grid(visible=True, linewidth=0.4, color="#dddddd")


def _plain(value: float, _: object) -> str:
    """1, 10, 1k, 100k, 1M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
