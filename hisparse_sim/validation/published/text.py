"""The comparison as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.validation.published.compare import Published
from hisparse_sim.validation.published.rows import Errors, Row, summary


def table(found: Published, *, notes: bool = True) -> str:
    """Each source with what is assumed, one line a figure; then the errors in sum."""
    parts = []
    for source, about in found.about.items():
        rows = [row for row in found.rows if row.source == source]
        parts.append("\n".join([source, _about(about), "", *_lines(rows), *(_notes(rows) if notes else ())]))
    parts.append("\n".join(["errors in sum", "", *_sums(summary(found.rows))]))
    return "\n\n".join(parts)


def _about(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _lines(rows: Sequence[Row]) -> list[str]:
    cells = [("case", "metric", "published", "simulated", "error", "range")]
    for row in rows:
        error = row.rel_error
        span = "" if row.low is None or row.high is None else f"{number(row.low)} to {number(row.high)}"
        cells.append(
            (
                row.case,
                row.metric,
                number(row.published),
                "-" if row.simulated is None else number(row.simulated),
                "-" if error is None else f"{error:+.1%}",
                span,
            )
        )
    widths = [max(len(line[i]) for line in cells) for i in range(6)]
    return [
        "  ".join(
            ["", *(f"{cell:{side}{width}}" for cell, side, width in zip(line, "<<>>><", widths, strict=True))]
        ).rstrip()
        for line in cells
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    """What stands behind figures, each once, with the cases that it is about."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        if row.note and row.case not in cases.setdefault(row.note, []):
            cases[row.note].append(row.case)
    found = []
    for note, of in cases.items():
        where = "; ".join(of) if len(of) <= 3 else f"{of[0]} and {len(of) - 1} more"
        found.append(f"  {where}: {note}")
    return ["", *found] if found else []


def _sums(errors: Sequence[Errors]) -> list[str]:
    width = max((len(e.source) for e in errors), default=0)
    found = []
    for e in errors:
        middle = "-" if e.median_abs is None else f"{e.median_abs:.1%}"
        most = "-" if e.max_abs is None else f"{e.max_abs:.1%}"
        of = f"of {e.rows} figures" + (f", {e.without} without" if e.without else "")
        found.append(f"  {e.source:<{width}}  {e.metric:<19}  median {middle:>6}  largest {most:>7}  {of}")
    return found


def number(value: float) -> str:
    """Four digits."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
