"""Simulations of a plan's choices, in this process or in several; each choice under each load once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hisparse_sim.errors import HiSparseError
from hisparse_sim.planning.backend import leave_without, workers
from hisparse_sim.planning.load import asked_of, loaded
from hisparse_sim.planning.screen import Screened
from hisparse_sim.planning.slo import GOODPUT, Goal, of_summary, slo_of
from hisparse_sim.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run under a load. ``metrics``: by goal; ``broken``: goals not met, or why it does not run."""

    metrics: Mapping[str, float | None]
    output_tokens_per_s: float
    good_per_s: float
    broken: tuple[str, ...]
    limit: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What a worker gets. ``parent``: the process without which it is pointless."""

    scenario: Scenario
    amount: float
    goals: tuple[Goal, ...]
    parent: int | None

    def __call__(self) -> Simulated | None:
        """None if Ctrl-C cut it short."""
        if self.parent is not None:
            leave_without(self.parent)
        return simulated(self.scenario, self.amount, self.goals)


@dataclass
class Runs:
    """``spent``: how many were simulated so far. ``told`` is called with it."""

    goals: tuple[Goal, ...]
    jobs: int = 1
    told: Callable[[int], None] | None = None
    spent: int = 0
    _known: dict[tuple[int, float], Simulated] = field(default_factory=dict)

    def at(self, asks: Sequence[tuple[Screened, float]]) -> list[Simulated]:
        """What each choice does under so much load in all, which its units share evenly.

        Raises ``KeyboardInterrupt``, and ``LostBackend`` when processes are lost.
        """
        trials: dict[tuple[int, float], Trial] = {}
        parent = os.getpid() if self.jobs > 1 else None
        for found, total in asks:
            key = _key(found, total)
            if key not in self._known:
                trials.setdefault(key, Trial(found.scenario, key[1], self.goals, parent))
        if trials:
            keys = list(trials)
            with workers("local", min(self.jobs, len(keys)), None) as compute:
                for index, one in compute(list(trials.values())):
                    if one is None:
                        raise KeyboardInterrupt
                    self._known[keys[index]] = one
                    self.spent += 1
                    if self.told is not None:
                        self.told(self.spent)
        return [self._of_all(found, total) for found, total in asks]

    def _of_all(self, found: Screened, total: float) -> Simulated:
        one, each = self._known[_key(found, total)], _key(found, total)[1]
        scale = total / each
        return replace(
            one,
            output_tokens_per_s=one.output_tokens_per_s * scale,
            good_per_s=one.good_per_s * scale,
        )


def _key(found: Screened, total: float) -> tuple[int, float]:
    share = total / (found.nodes // found.sized.span)
    whole = asked_of(found.scenario.workload).kind == "clients"
    return id(found.sized), math.ceil(share) if whole else share


def why_not_run(scenario: Scenario) -> str:
    """Why no run stands for it; empty where one does."""
    from hisparse_sim.simulation.replica import check_simulated

    try:
        check_simulated(scenario)
    except HiSparseError as error:
        return str(error)
    return ""


def simulated(scenario: Scenario, amount: float, goals: Sequence[Goal]) -> Simulated | None:
    """``scenario`` with ``amount`` of load, against ``goals``; none if Ctrl-C cut it short."""
    from hisparse_sim.simulation.run import simulate

    asked = asked_of(scenario.workload)
    slo = slo_of(goals, scenario.slo)
    each = scenario.model_copy(
        update={"workload": loaded(scenario.workload, asked, amount), "slo": slo, "plan": None}
    )
    try:
        summary = simulate(each).summary
    except HiSparseError as error:
        return Simulated({}, 0.0, 0.0, (str(error),), "does not run")
    if not summary["complete"]:
        return None
    metrics = of_summary(summary)
    tokens = summary["output_tokens_per_s"] or 0.0
    good = summary["goodput"]
    done = summary["requests_completed"] or 0
    sent = done + summary["requests_failed"]
    per_s = _requests_per_s(summary)
    if good is not None and sent:
        metrics[GOODPUT] = good / per_s * done / sent if per_s else 0.0
    broken = [g.text for g in goals if not g.holds(metrics.get(g.metric))]
    if summary["verdict"] in ("infeasible", "overloaded"):
        broken.append(f"verdict {summary['verdict']}")
    return Simulated(metrics, tokens, per_s if good is None else good, tuple(broken), summary["limit"])


def _requests_per_s(summary: Mapping[str, Any]) -> float:
    done, span = summary["requests_completed"], summary["sim_time_s"]
    return done / span if span else 0.0
