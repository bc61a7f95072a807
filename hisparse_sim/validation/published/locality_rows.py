"""Selected rows that a hot buffer misses or holds.

Published: arXiv 2608.07009 (GLM-5.1) and a replay of DeepSeek-V4-Flash in a fork of SGLang. The localities of
``configs/localities`` are fitted to such figures: a figure that was fitted stands here beside what the
others alone predict (leave-one-out), any other beside the fit. Overlaps of consecutive steps are fitted,
too, and are in docs/explanation/locality.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hisparse_sim.errors import HiSparseError
from hisparse_sim.locality.figures import Figure, read_figures
from hisparse_sim.locality.file import Locality, load_locality
from hisparse_sim.locality.policies import POLICIES
from hisparse_sim.locality.reuse import reuse
from hisparse_sim.validation.published.comparison import Comparison
from hisparse_sim.validation.published.rows import Row

STEM = "locality"
METRICS = ("miss_rate", "hit_rate")


def read(path: Path) -> list[Figure]:
    """The figures of a table. Raises InputError naming file, line and column."""
    return read_figures(path)


def comparisons(figures: Sequence[Figure], place: str) -> list[Comparison]:
    """One a figure that has a rate."""
    rates = [figure for figure in figures if figure.quantity in METRICS]
    return [Comparison((), lambda _, figure=figure: [_row(figure)]) for figure in rates]  # type: ignore[misc]


def _row(figure: Figure) -> Row:
    case = f"{figure.model}, {figure.policy} {figure.buffer_rows:,} rows, layers {figure.layers}"
    try:
        locality = load_locality(figure.model.lower())
    except HiSparseError as error:
        return Row(STEM, case, figure.quantity, figure.value, None, note=str(error))
    key = f"{figure.model} {figure.words}", figure.value
    fitted = next((row for row in locality.fit if (row.figure, row.given) == key), None)
    found, note = predicted(locality, figure) if fitted is None else fitted.fitted, ""
    if fitted is not None:
        note = "fitted to this figure, and no other tells"
        if fitted.left_out is not None:
            found, note = fitted.left_out, "predicted from the other figures alone"
    return Row(STEM, case, figure.quantity, figure.value, found, note=note)


def predicted(locality: Locality, figure: Figure) -> float:
    """The figure as a locality has it, in its own terms."""
    classes = [c for c in locality.classes if c.name == figure.layers] or list(locality.classes)
    shares = [
        (c.layers / len(processes), POLICIES[figure.policy.lower()](windows, figure.buffer_rows))
        for c in classes
        for processes in [c.processes()]
        for process in processes
        for windows in [reuse(process, topk_rows=figure.topk_rows, context_rows=figure.context_rows)]
    ]
    return figure.of(sum(weight * share for weight, share in shares) / sum(weight for weight, _ in shares))
