"""What ``models`` and ``nodes`` share: lists of names, and one record with units and sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from hisparse_sim.errors import InputError

if TYPE_CHECKING:
    from hisparse_sim.scenario.base import Sourced
    from hisparse_sim.scenario.model import ModelSpec
    from hisparse_sim.scenario.node import NodeSpec

_UNITS = {"_bytes_per_s": "B/s", "_bytes": "B", "_flops": "FLOP/s", "_tokens": "tokens", "_s": "s"}


def answer(
    action: str,
    name: str | None,
    *,
    kind: str,
    names: Callable[[], list[str]],
    load: Callable[[str], ModelSpec] | Callable[[str], NodeSpec],
    summary: Callable[[Any], dict[str, str]],
    as_json: bool,
) -> None:
    """Print the list, or one entry. Raises InputError for an unknown action or name."""
    if action == "list":
        if name is not None:
            raise InputError(f"takes no name; to see one: {kind}s show {name}", where=f"{kind}s list")
        known = names()
        if as_json:
            typer.echo(json.dumps({f"{kind}s": known}, indent=2))
        else:
            typer.echo(table([{kind: n, **summary(load(n))} for n in known]))
    elif action == "show":
        if name is None:
            raise InputError(
                f"needs the name of a {kind}, one of {', '.join(names())}", where=f"{kind}s show"
            )
        record = load(name)
        typer.echo(record.model_dump_json(indent=2) if as_json else show(record))
    else:
        raise InputError(f"{action!r} is not an action; use list or show NAME", where=f"{kind}s")


def table(rows: Sequence[dict[str, str]]) -> str:
    """Rows as plain aligned columns under their keys."""
    header = list(rows[0]) if rows else []
    lines = [header, *([row[h] for h in header] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def show(record: ModelSpec | NodeSpec) -> str:
    """Fields with values, units and the number of their source, then the sources."""
    data = record.model_dump(exclude={"sources"})
    fields = list(_flat(data))
    width = max(len(name) for name, _ in fields)
    lines = []
    for name, value in fields:
        marks = [f"[{i}]" for i, source in enumerate(record.sources, 1) if covers(source, name)]
        lines.append(f"{name.ljust(width)}  {_value(name, value)} {' '.join(marks)}".rstrip())
    notes = [f"[{i}] {source.source} ({source.grade})" for i, source in enumerate(record.sources, 1)]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def covers(source: Sourced, name: str) -> bool:
    """Whether ``source`` speaks about the field ``name`` (``gpu.memory_bytes``) or what it is in."""
    return any(name == f or name.startswith(f + ".") for f in source.fields)


def _flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _value(name: str, value: Any) -> str:
    from hisparse_sim.scenario.units import human_bytes

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return _ranges(value) if value else "-"
    unit = next((u for s, u in _UNITS.items() if name.endswith(s)), "")
    if unit == "B":
        return f"{value:,} B ({human_bytes(value)})"
    if isinstance(value, float):
        return f"{value:.5g} {unit}".rstrip()
    return f"{value:,} {unit}".rstrip() if isinstance(value, int) else str(value)


def _ranges(numbers: Sequence[int]) -> str:
    """``0-2, 6, 10``, with how many there are."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    text = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"{text} ({len(numbers)})"
