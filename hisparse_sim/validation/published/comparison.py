"""One or a few published rows and the simulations that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hisparse_sim.errors import HiSparseError
from hisparse_sim.validation.published.rows import Row

Answer = dict[str, Any] | str
"""The summary of a run, or why there is none."""


@dataclass(frozen=True, slots=True)
class Run:
    """A shipped scenario, or a whole one, with overrides (``path=value``)."""

    scenario: str | Mapping[str, Any]
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows`` makes lines of the answers to ``runs``, in their order."""

    runs: tuple[Run, ...]
    rows: Callable[[Sequence[Answer]], list[Row]]


def simulated(run: Run) -> Answer:
    """The summary of a run; what the simulator refuses is an answer, too."""
    from hisparse_sim.scenario.loader import load_scenario, scenario_from_mapping
    from hisparse_sim.simulation.run import simulate

    try:
        if isinstance(run.scenario, str):
            scenario = load_scenario(run.scenario, overrides=run.overrides)
        else:
            scenario = scenario_from_mapping(dict(run.scenario), overrides=run.overrides)
        return simulate(scenario).summary
    except HiSparseError as error:
        return str(error)
