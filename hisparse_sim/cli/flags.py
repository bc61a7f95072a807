"""What flags of several commands have in common: paths that are not empty, and no contradictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from hisparse_sim.errors import InputError

_LONGEST_S = 1e6


def named_path(text: str) -> Path:
    """A path; an empty one would mean the current folder. Raises ``BadParameter``."""
    if not text.strip():
        raise typer.BadParameter("is empty; name a file or folder")
    return Path(text)


def wall_seconds(text: str) -> float:
    """Seconds of somebody's patience. Raises ``BadParameter``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LONGEST_S:
        raise typer.BadParameter(f"{text!r} is no number of seconds from 0 to {_LONGEST_S:,.0f}")
    return value


def refuse_contradictions(flags: Mapping[tuple[str, ...], tuple[str, Any]], settings: Sequence[str]) -> None:
    """See that no ``--set`` says of a field something else than a flag, or leaves the flag's value out.

    ``flags``: of each field, the flag that sets it and the value. Raises InputError naming both.
    """
    from hisparse_sim.scenario.overrides import parse_override, place

    for text in settings:
        path, value = parse_override(text)
        for field, (flag, wanted) in flags.items():
            if path != field[: len(path)]:
                continue
            said = value
            for key in field[len(path) :]:
                said = said.get(key) if isinstance(said, dict) else None
            if isinstance(wanted, Path):
                same = isinstance(said, str) and bool(said) and Path(said).absolute() == wanted.absolute()
            else:
                same = said == wanted
            if not same and said is None and len(path) < len(field):
                raise InputError(
                    f"replaces all of {'.'.join(path)}, and {flag} {wanted} with it; say"
                    f" {'.'.join(field[len(path) :])} there, too",
                    where=place(text),
                )
            if not same:
                raise InputError(
                    f"sets {'.'.join(field)} to another value than {flag} {wanted}; give one of them",
                    where=place(text),
                )
