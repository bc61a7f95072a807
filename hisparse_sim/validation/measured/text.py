"""The comparison as lines of text."""

from __future__ import annotations

from hisparse_sim.validation.measured.compare import Measured
from hisparse_sim.validation.measured.rows import Row
from hisparse_sim.validation.published.text import number


def table(found: Measured) -> str:
    """Inputs with notes, figures side by side, the cause of the largest error, contradictions."""
    lines = [f"scenario {found.scenario}; simulated: {found.workload} requests"]
    for evidence in found.evidence:
        lines.append(f"{evidence.kind}: {evidence.path}")
        lines += [f"  {note}" for note in evidence.notes]
    parts = ["\n".join(lines)]
    if found.rows:
        parts.append("\n".join(_rows(found)))
    else:
        parts.append("no figure was measured that the simulation has, too")
    if found.cause:
        parts.append("\n".join(found.cause))
    if found.contradictions:
        said = [f"  {one.sentence}" for one in found.contradictions]
        parts.append("\n".join(["the scenario's assumptions that the inputs contradict", *said]))
    elif any(evidence.kind != "bench" for evidence in found.evidence):
        parts.append("no assumption of the scenario is contradicted")
    return "\n\n".join(parts)


def _rows(found: Measured) -> list[str]:
    set_right = any(row.corrected is not None for row in found.rows)
    head = ["metric", "source", "measured", "simulated", "error", "set right", "error"]
    cells = [head, *map(_cells, found.rows)]
    if not set_right:
        cells = [line[:5] for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(f"{cell:{'<' if i < 2 else '>'}{widths[i]}}" for i, cell in enumerate(line)).rstrip()
        for line in cells
    ]


def _cells(row: Row) -> list[str]:
    return [
        row.metric,
        row.source,
        number(row.measured),
        _number(row.simulated),
        _percent(row.rel_error),
        _number(row.corrected),
        _percent(row.corrected_error),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
