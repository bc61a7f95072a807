"""A sweep from points to a folder: what is there already is left, the rest is computed and added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hisparse_sim.planning.backend import LostBackend, Name, Task, workers
from hisparse_sim.planning.folder import INTERVALS, SweepFolder, write_text
from hisparse_sim.planning.point import Kind, Point
from hisparse_sim.planning.row import Row, numbers, refused_row
from hisparse_sim.planning.spread import intervals
from hisparse_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]
"""Called with the points that are over, and how many there are."""

TOGETHER = {"run": 1, "estimate": 50}
"""Points a file. A simulation is worth one of its own; an estimate takes less time than a file."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to compute, by whom, and where it goes. ``points`` have one set of fields varied."""

    base: Scenario
    points: Sequence[Point]
    kind: Kind
    folder: Path
    jobs: int = 1
    backend: Name = "local"
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """``lost``: why the backend ended before the points did; ``interrupted``: Ctrl-C did."""

    computed: int
    found: int
    total: int
    frame: pd.DataFrame
    broken: tuple[str, ...]
    interrupted: bool = False
    lost: str = ""

    @property
    def complete(self) -> bool:
        """Whether every point is in the folder."""
        return self.computed + self.found == self.total


def run_sweep(sweep: Sweep, progress: Progress | None = None) -> Outcome:
    """Compute the points that the folder does not hold. Ctrl-C and lost workers keep what is finished.

    Raises ``InputError`` for a folder that is taken or of another sweep, a missing extra, and a
    cluster that cannot be reached.
    """
    check_workloads(sweep.points)
    folder = SweepFolder(sweep.folder, sweep.base, sweep.points, sweep.kind)
    done = folder.open()
    try:
        keys = {point.key for point in sweep.points}
        found = len(keys & done)
        left = [point for point in sweep.points if point.key not in done]
        computed, interrupted, lost = 0, False, ""
        try:
            for rows in _computed(sweep, left):
                folder.add(rows)
                computed += len(rows)
                if progress is not None:
                    progress(found + computed, len(sweep.points))
        except KeyboardInterrupt:
            interrupted = True
        except LostBackend as error:
            lost = str(error)
        frame = folder.read() if computed or done else _nothing(folder)
        if computed or found:
            known = [n for n in numbers(sweep.kind) if n not in folder.varied]
            varied = [name for name in folder.varied if name != "seed"]
            write_text(sweep.folder / INTERVALS, intervals(frame, varied, known).to_csv(index=False))
        return Outcome(computed, found, len(sweep.points), frame, tuple(folder.broken), interrupted, lost)
    finally:
        folder.close()


def check_workloads(points: Sequence[Point]) -> None:
    """See that every workload can be made, traces read through, before anything is computed.

    Raises ``InputError`` naming the file or field.
    """
    from hisparse_sim.workload.make import make_workload

    distinct = {p.scenario.workload.model_dump_json(): p.scenario for p in points}
    for scenario in distinct.values():
        make_workload(scenario.workload, scenario.seed)


def _nothing(folder: SweepFolder) -> pd.DataFrame:
    import pandas as pd

    frame: pd.DataFrame = folder.schema().empty_table().to_pandas()
    return frame if isinstance(frame, pd.DataFrame) else pd.DataFrame()


def _computed(sweep: Sweep, left: Sequence[Point]) -> Iterator[list[tuple[Point, Row]]]:
    """Rows of finished points, a file's at a time. Raises ``KeyboardInterrupt`` and ``LostBackend``."""
    import os

    refused = [(p, refused_row(p.scenario, p.refused)) for p in left if p.refused]
    if refused:
        yield refused
    todo = [p for p in left if not p.refused]
    if not todo:
        return
    size = TOGETHER[sweep.kind]
    groups = [todo[i : i + size] for i in range(0, len(todo), size)]
    parent = os.getpid() if sweep.backend == "local" else None
    with workers(sweep.backend, sweep.jobs, sweep.address) as compute:
        tasks = [Task(tuple(p.scenario for p in group), sweep.kind, parent) for group in groups]
        for index, rows in compute(tasks):
            finished = [(p, row) for p, row in zip(groups[index], rows, strict=True) if row is not None]
            if finished:
                yield finished
            if len(finished) < len(rows):  # Ctrl-C reached the simulation first
                raise KeyboardInterrupt
