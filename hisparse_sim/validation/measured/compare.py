"""Inputs read, the case simulated as asked and as set right, and all of it side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.simulation.run import Progress, simulate
from hisparse_sim.validation.measured.bench import Bench, read_bench
from hisparse_sim.validation.measured.causes import likely_cause
from hisparse_sim.validation.measured.contradictions import Contradiction, contradictions
from hisparse_sim.validation.measured.corrected import set_right, settings_of, write
from hisparse_sim.validation.measured.engine_log import read_engine_log
from hisparse_sim.validation.measured.evidence import Evidence
from hisparse_sim.validation.measured.metrics import read_metrics
from hisparse_sim.validation.measured.rows import Row, rows_of
from hisparse_sim.validation.measured.simulated import figures
from hisparse_sim.validation.measured.workload import asked_otherwise, rebuilt


@dataclass(slots=True)
class Inputs:
    """Files of the user's. ``result``: which of several results in ``bench``."""

    bench: Path | None = None
    metrics: Sequence[Path] = ()
    log: Path | None = None
    result: int | None = None


@dataclass(slots=True)
class Measured:
    """What was compared. ``workload`` says whose requests were simulated."""

    scenario: str
    workload: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    cause: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Of ``--json``."""
        return {
            "scenario": self.scenario,
            "workload": self.workload,
            "inputs": [{"kind": e.kind, "path": e.path, "notes": e.notes} for e in self.evidence],
            "rows": [row.as_json() for row in self.rows],
            "cause": self.cause,
            "contradictions": [one.as_json() for one in self.contradictions],
            "corrections": self.settings,
            "corrected": [str(path) for path in self.written],
            "problems": self.problems,
        }


def measure(
    scenario: Scenario, inputs: Inputs, *, corrected: Path | None = None, progress: Progress | None = None
) -> Measured:
    """Compare ``scenario`` with what ``inputs`` say; a bad input loses itself alone.

    ``corrected``: write the scenario set right here. Raises KeyboardInterrupt for Ctrl-C.
    """
    found = Measured(scenario.name)
    bench = _read(inputs, found)
    if not found.evidence:
        return found
    with tempfile.TemporaryDirectory(prefix="hisparse-sim-") as folder:
        asked = scenario
        path = Path(folder) / "requests.jsonl"
        spec = None if bench is None else _attempt(found, lambda: rebuilt(bench, path, seed=scenario.seed))
        if isinstance(spec, TraceSpec):
            asked = scenario.model_copy(update={"workload": spec})
        found.workload = "the benchmark's" if asked is not scenario else "the scenario's"
        ours, summary = _simulated(asked, found, progress)
        found.contradictions = contradictions(scenario, found.evidence)
        if bench is not None and ours:
            found.contradictions += asked_otherwise(bench, ours)
        found.settings = settings_of(found.contradictions)
        theirs: dict[str, float] = {}
        right: Scenario | None = asked
        if found.settings:
            right = _attempt(found, lambda: set_right(asked, found.settings), "the scenario set right")
            if right is not None:
                theirs, _ = _simulated(right, found, progress, "the scenario set right")
        found.rows = rows_of(found.evidence, ours, theirs)
        found.cause = likely_cause(found.rows, found.contradictions, summary)
        if corrected is not None and right is not None and (found.settings or asked is not scenario):
            requests = path if asked is not scenario else None
            found.written = (
                _attempt(
                    found,
                    lambda: write(asked, found.settings, corrected, found.contradictions, requests=requests),
                )
                or []
            )
    for evidence in found.evidence:
        found.problems += evidence.problems
    return found


def _read(inputs: Inputs, found: Measured) -> Bench | None:
    bench: Bench | None = None
    if (path := inputs.bench) is not None and (
        bench := _attempt(found, lambda: read_bench(path, which=inputs.result))
    ):
        found.evidence.append(bench)
    if inputs.metrics and (metrics := _attempt(found, lambda: read_metrics(inputs.metrics))):
        found.evidence.append(metrics)
    if (log_path := inputs.log) is not None:
        ended = bench.ended if bench is not None else None
        duration_s = bench.figures.get("duration_s", 0.0) if bench is not None else 0.0
        log = _attempt(found, lambda: read_engine_log(log_path, ended=ended, duration_s=duration_s))
        if log:
            found.evidence.append(log)
    return bench


def _attempt(found: Measured, what: Callable[[], Any], name: str = "") -> Any:
    """What it gives, or none and a problem more."""
    try:
        return what()
    except HiSparseError as error:
        found.problems.append(f"{name}: {error}" if name else str(error))
        return None


def _simulated(
    scenario: Scenario, found: Measured, progress: Progress | None, name: str = ""
) -> tuple[dict[str, float], dict[str, Any]]:
    result = _attempt(
        found, lambda: simulate(scenario, progress=progress), f"not simulated: {name or scenario.name}"
    )
    if result is None:
        return {}, {}
    if not result.summary["complete"]:
        raise KeyboardInterrupt
    return figures(result), result.summary


def check_inputs(inputs: Inputs, corrected: Path | None = None) -> None:
    """Raises InputError if nothing is given, a result is chosen of none, or an input would be overwritten."""
    given = [path for path in (inputs.bench, *inputs.metrics, inputs.log) if path is not None]
    if corrected is not None and corrected.resolve() in [path.resolve() for path in given]:
        raise InputError("is one of the inputs; name another file", where=f"--corrected {corrected}")
    if inputs.bench is None and not inputs.metrics and inputs.log is None:
        raise InputError("give at least one of --bench, --metrics and --log", where="validate measured")
    if inputs.result is not None and inputs.bench is None:
        raise InputError("chooses among the results of --bench, which is missing", where="--result")
