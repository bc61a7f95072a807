"""All published tables, shipped or of a folder, beside the simulation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import configs_dir
from hisparse_sim.validation.published import (
    agentic,
    calculator,
    locality_rows,
    rtx_pro,
    single,
    watermark,
)
from hisparse_sim.validation.published.comparison import Answer, Comparison, simulated
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import read_table

SOURCES: dict[str, ModuleType] = {
    module.STEM: module for module in (agentic, calculator, rtx_pro, watermark, locality_rows, single)
}
"""What a file's name begins with, and the module that understands its rows."""

Progress = Callable[[int, int], None]
"""Called with the simulations done and those there are."""


@dataclass(slots=True)
class Published:
    """What was compared."""

    rows: list[Row] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    """Each source's text."""
    skipped: list[str] = field(default_factory=list)
    """Files of no known kind."""
    problems: list[str] = field(default_factory=list)
    """Files that could not be used, and why."""


def compare(folder: Path | None = None, *, progress: Progress | None = None) -> Published:
    """The tables of ``folder``, else the shipped ones; a bad file loses itself alone.

    Raises InputError if there is no such folder, or no table in it.
    """
    found = Published()
    comparisons: list[Comparison] = []
    for path in _files(folder, found):
        stem = next(stem for stem in SOURCES if path.name.startswith(stem))
        module = SOURCES[stem]
        try:
            rows = module.read(path) if hasattr(module, "read") else read_table(path, module.COLUMNS)
            comparisons += module.comparisons(rows, str(path))
            found.about[stem] = (module.__doc__ or "").strip()
        except InputError as error:
            found.problems.append(str(error))
    answers = _answers(comparisons, progress)
    for comparison in comparisons:
        found.rows += comparison.rows([next(answers) for _ in comparison.runs])
    return found


def _files(given: Path | None, found: Published) -> list[Path]:
    folder = given or configs_dir() / "validation"
    if not folder.is_dir():
        raise InputError("is no folder; name one with tables of published results", where=str(folder))
    files = sorted(path for path in folder.iterdir() if path.is_file())
    known = [path for path in files if path.suffix == ".csv" and path.name.startswith(tuple(SOURCES))]
    if given is not None:  # the shipped folder has a text beside its tables
        found.skipped = [str(path) for path in files if path not in known]
    if not known:
        raise InputError(f"holds no table; names begin with {', '.join(SOURCES)}", where=str(folder))
    return known


def _answers(comparisons: Sequence[Comparison], progress: Progress | None) -> Iterator[Answer]:
    """Of all runs, in order; several at a time, each distinct one once."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    if not runs:
        return
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(runs))) as pool:
        for done, answer in enumerate(pool.map(simulated, runs), start=1):
            if progress is not None:
                progress(done, len(runs))
            yield answer


def as_json(found: Published) -> Mapping[str, Any]:
    """Of ``--json``; the bands and their reasons are in the table and in ``rows.csv``."""
    rows = (row.as_json() for row in found.rows)
    return {"rows": [{name: row[name] for name in _FIGURES} for row in rows]}


_FIGURES = ("source", "case", "metric", "published", "simulated", "rel_error")
