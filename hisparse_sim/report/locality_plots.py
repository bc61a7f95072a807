"""Pictures of a locality: misses against the buffer, against what is resident, and as a buffer fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hisparse_sim.cost.locality import MissModel
from hisparse_sim.locality.file import Locality
from hisparse_sim.locality.policies import POLICIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"lru": "LRU", "fifo": "FIFO", "random": "random", "belady": "Bélády (bound)"}
_COLOURS = {"lru": "#0b5fa5", "fifo": "#c8641b", "random": "#5b8c3a", "belady": "#777777"}
_MARKS = {"lru": "o", "fifo": "s", "random": "^", "belady": "D"}


@dataclass(frozen=True)
class Point:
    """A share that was replayed or published."""

    policy: str
    hot_rows: int
    share: float


def draw(
    locality: Locality, *, context_rows: int, points: Sequence[Point] = (), points_are: str = ""
) -> Figure:
    """One page: misses by policy and buffer, by resident share, and after a transition."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    k = locality.topk_rows
    factors = np.geomspace(1, 16, 33)

    def share(policy: str, rows: float) -> float:
        return MissModel(locality, topk_rows=k, hot_rows=round(rows), policy=policy).share(context_rows)

    for policy in POLICIES:
        line = [share(policy, f * k) for f in factors]
        left.plot(factors, line, color=_COLOURS[policy], label=NAMES[policy], lw=1.8)
    for policy in dict.fromkeys(p.policy for p in points):
        own = [p for p in points if p.policy == policy]
        label = f"{points_are} {NAMES[policy]}"
        left.plot(
            [p.hot_rows / k for p in own],
            [p.share for p in own],
            _MARKS[policy],
            color=_COLOURS[policy],
            mec="black",
            ms=7,
            label=label,
        )
    left.set(xscale="log", yscale="log", xlabel=f"hot-buffer rows, in multiples of top-k ({k:,})")
    left.set_ylabel("selected rows that miss")
    left.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    left.xaxis.set_minor_formatter(NullFormatter())
    left.yaxis.set_major_formatter(FuncFormatter(_percent))
    left.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: _percent(v, _) if _leads(v) in "25" else ""))
    left.set_title("by buffer and policy", fontsize=10)
    left.legend(fontsize=8, frameon=False)
    resident = np.linspace(0, 0.98, 50)
    for colour, factor in zip(("#7fb2dd", "#0b5fa5", "#063a66"), (1, 2, 4), strict=True):
        model = MissModel(locality, topk_rows=k, hot_rows=factor * k)
        rows = [(1 - r) * model.share(context_rows, resident_share=float(r)) for r in resident]
        middle.plot(resident, rows, color=colour, label=f"{factor} x top-k", lw=1.8)
        steps = np.arange(0, 41)
        right.step(
            steps, [model.share(context_rows, steps=int(s)) for s in steps], where="post", color=colour,
            label=f"{factor} x top-k", lw=1.8,
        )  # fmt: skip
    for axes, title, x in (
        (middle, "of all selected rows, LRU", "share of pages resident"),
        (right, "after a transition, LRU, nothing resident", "decode steps since the buffer was empty"),
    ):
        axes.set(ylim=(0, None), xlabel=x)
        axes.set_title(title, fontsize=10)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.legend(fontsize=8, frameon=False)
    middle.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in (left, middle, right):
        _plain(axes)
    figure.suptitle(
        f"Locality {locality.id}: a context of {context_rows:,} rows ({locality.grade})", fontsize=12
    )
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture; by its suffix PNG or SVG."""
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}}[path.suffix]
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, metadata=metadata)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)


def _percent(value: float, _: object = None) -> str:
    return f"{100 * value:.3g} %"


def _leads(value: float) -> str:
    return f"{value:.0e}"[0]
