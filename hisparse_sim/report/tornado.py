"""What an answer hangs on, as a table and as a tornado chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_sim.planning.sensitivity import Sensitivity
from hisparse_sim.report.figure_files import save_figure
from hisparse_sim.report.sheet import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNITS = {"output_tokens_per_s": (1.0, "tokens/s"), "largest_load": (1.0, "")}
_SECONDS_FROM_S = 10.0


def _unit(found: Sensitivity) -> tuple[float, str]:
    """What the answer is multiplied by to be read, and the unit it then has."""
    return _UNITS.get(found.of, (1e3, "ms") if found.base < _SECONDS_FROM_S else (1.0, "s"))


def _shown(value: float, found: Sensitivity) -> str:
    factor, unit = _unit(found)
    return f"{value * factor:,.4g} {unit}".rstrip()


def tornado_table(found: Sensitivity) -> str:
    """The widest swing first; low and high are of the input, not of the answer."""
    rows = [("input", "moved by", "at its low", "at its high", "swing")]
    for swing in found.swings:
        share = swing.width / found.base if found.base else 0.0
        rows.append(
            (
                swing.what,
                swing.spread,
                _shown(swing.low, found),
                _shown(swing.high, found),
                f"{share:.1%}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([f"{found.of}: {_shown(found.base, found)}, by estimate", "", *lines])


def tornado(found: Sensitivity) -> Figure:
    """A bar an input, the widest swing on top."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    factor, unit = _unit(found)
    figure = Figure(figsize=(7.0, 0.9 + 0.28 * len(found.swings)), layout="constrained")
    axes = figure.subplots()
    for place, swing in enumerate(reversed(found.swings)):
        for value, colour in ((swing.low, COLOURS[0]), (swing.high, COLOURS[1])):
            width = factor * (value - found.base)
            axes.barh(place, width, left=factor * found.base, height=0.7, color=colour)
    axes.axvline(factor * found.base, color="black", lw=0.8)
    labels = [f"{swing.what} ({swing.spread})" for swing in reversed(found.swings)]
    axes.set_yticks(range(len(labels)), [label.replace("$", r"\$") for label in labels], fontsize=7)
    axes.set_xlabel(f"{found.of}, {unit}".rstrip(", "), fontsize=8)
    axes.tick_params(labelsize=7)
    ends = zip(("input at its low", "input at its high"), COLOURS, strict=False)
    handles = [Patch(label=label, facecolor=colour) for label, colour in ends]
    figure.legend(handles=handles, fontsize=7, ncols=2, loc="outside lower center", frameon=False)
    return figure


def save_tornado(found: Sensitivity, folder: Path) -> list[Path]:
    """Write ``tornado.png`` and ``.svg``. Raises ``InputError``."""
    return save_figure(tornado(found), folder, "tornado")
