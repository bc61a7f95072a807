"""Steps as stacked bars of their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisparse_sim.report.figure_files import save_figure
from hisparse_sim.report.sheet import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HATCHES = ("", "//", "..")


def anatomy(steps: Sequence[Mapping[str, Any]]) -> Figure:
    """``steps``: as ``explain --json`` lists them."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(part["part"] for step in steps for part in step["parts"] if part["seconds"]))
    looks: dict[str, dict[str, Any]] = {
        name: {"facecolor": COLOURS[i % len(COLOURS)], "hatch": _HATCHES[i // len(COLOURS) % len(_HATCHES)]}
        for i, name in enumerate(names)
    }
    figure = Figure(figsize=(6.0, 0.6 + 1.1 * len(steps)), layout="constrained")
    for axes, step in zip(figure.subplots(len(steps), 1, squeeze=False)[:, 0], steps, strict=True):
        left = 0.0
        for part in step["parts"]:
            if part["seconds"]:
                width = 1e3 * part["seconds"]
                axes.barh(0, width, left=left, edgecolor="white", lw=0.5, **looks[part["part"]])
                left += width
        axes.set_yticks([])
        axes.set_xlim(0, left or 1.0)
        axes.set_xlabel("ms", fontsize=7)
        axes.tick_params(labelsize=7)
        axes.set_title(step["what"], fontsize=8, loc="left")
    handles = [Patch(label=name, edgecolor="white", **look) for name, look in looks.items()]
    figure.legend(handles=handles, fontsize=7, ncols=6, loc="outside lower center", frameon=False)
    return figure


def save_anatomy(steps: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write ``anatomy.png`` and ``.svg``. Raises InputError."""
    return save_figure(anatomy(steps), folder, "anatomy")
