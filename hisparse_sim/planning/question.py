"""What a plan is asked: a scenario's own ``plan:``, with more said of it, and checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from hisparse_sim.errors import InputError
from hisparse_sim.planning.load import Asked, asked_of
from hisparse_sim.planning.price import Prices, prices_of
from hisparse_sim.planning.search import TRIALS, Answer, Progress, Search
from hisparse_sim.planning.slo import Goal, parse_goals
from hisparse_sim.planning.space import Space, space_of
from hisparse_sim.scenario.plan import Objective, PlanSpec
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.workload.make import make_workload

MOST_RUNS = 10_000
MOST_TRIALS = 100_000


@dataclass(frozen=True, slots=True)
class Question:
    """Goals and choices of one workload, valid."""

    goals: tuple[Goal, ...]
    objective: Objective
    asked: Asked
    space: Space
    prices: Prices

    def answer(
        self,
        runs: int,
        bisect: int,
        progress: Progress | None = None,
        *,
        jobs: int = 1,
        trials: int | None = None,
    ) -> Answer:
        """``runs``: simulations for the best; ``bisect``: for each largest load; in ``jobs`` processes.

        ``trials``: choices drawn from a space that is not looked through whole. Raises ``Infeasible``, and
        ``LostBackend`` when processes are lost.
        """
        return Search(
            self.space,
            self.goals,
            self.objective,
            self.prices,
            runs,
            bisect,
            progress,
            jobs,
            trials or TRIALS,
        ).answer()


def question(
    base: Scenario,
    *,
    slo: Sequence[str] = (),
    objective: str | None = None,
    vary: Sequence[str] = (),
    drawn: bool = False,
) -> Question:
    """``slo`` and ``objective`` in place of the scenario's, ``vary`` (``path=values``) of its choices.

    ``drawn``: draw from the space though it could be looked through whole.

    Raises ``InputError`` naming flag or field.
    """
    plan = base.plan or PlanSpec()
    goals = parse_goals(slo) if slo else parse_goals(plan.slo, where="plan.slo")
    if not goals:
        raise InputError("missing; give --slo 'ttft_p95<=30s', or plan.slo in the scenario", where="--slo")
    wanted = objective or plan.objective
    if wanted not in get_args(Objective):
        known = ", ".join(get_args(Objective))
        raise InputError(f"{wanted!r} is not known; one of {known}", where="--objective")
    asked = asked_of(base.workload)
    make_workload(base.workload, base.seed)
    space = space_of(base, plan, vary, whole=False if drawn else None)
    prices = prices_of(plan, space.machines())
    return Question(goals, cast("Objective", wanted), asked, space, prices)
