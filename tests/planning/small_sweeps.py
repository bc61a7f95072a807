"""A small scenario, and sweeps of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hisparse_sim.planning.axes import Choice, crossed, parse_axis
from hisparse_sim.planning.point import Kind, make_points
from hisparse_sim.planning.sweep import Sweep
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.scenario.scenario import Scenario

AGENTIC = "agentic-13turn-8xh200"
SMALL = ("workload.first_prompt_tokens=4000", "workload.limit=4", "workload.concurrency=2")
SLOW = ("workload.limit=90",)
"""About half a second a point."""


def base(*overrides: str) -> Scenario:
    return load_scenario(AGENTIC, overrides=overrides or SMALL)


def choices(*vary: str) -> list[Choice]:
    return crossed([parse_axis(text) for text in vary])


def sweep(
    out: Path, *vary: str, of: Scenario | None = None, seeds: int = 1, kind: Kind = "run", **more: Any
) -> Sweep:
    scenario = of or base()
    return Sweep(scenario, make_points(scenario, choices(*vary), seeds=seeds, kind=kind), kind, out, **more)


def parts(out: Path) -> dict[str, int]:
    """The files of the dataset and when they were written."""
    return {f.name: f.stat().st_mtime_ns for f in out.glob("*.parquet") if not f.name.startswith(("_", "."))}
