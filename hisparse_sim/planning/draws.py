"""Whether a plan holds when the profile is wrong by as much as it says it may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from hisparse_sim.cost.work import PARTS, StepCost, StepWork
from hisparse_sim.estimate.concurrency import overhead_variants
from hisparse_sim.estimate.steady import Floats, Steady
from hisparse_sim.planning.screen import Screen, Screened
from hisparse_sim.planning.slo import GOODPUT, Goal

DRAWS = 100
NAMES = tuple(field.removesuffix("_s") for field in StepCost.__struct_fields__[:PARTS])
_CHUNK = 2048


def uncertainties(steady: Steady) -> Floats:
    """Relative standard deviation of each part of a step, (parts,): errors of fits, ranges of the rest.

    Of a step in which half the replica's requests decode beside a chunk of prefill.
    """
    cost, context = steady.cost, round(steady.mix.context_tokens)
    work = cost.decode_work(max(1, steady.most // 2), context, 0.5 if cost.misses is not None else 1.0)
    new = max(1, min(_CHUNK, steady.chunks.chunk_tokens))
    mixed: StepWork = replace(
        work,
        prefills=((new, context // 2),),
        staged_tokens=context // 2 if cost.misses is not None else 0,
        mirrored_tokens=work.mirrored_tokens + new if cost.misses is not None else 0,
    )
    found = {row.part: row.uncertainty_s / row.seconds for row in cost.query(mixed).parts if row.seconds > 0}
    return np.array([found.get(name, 0.0) for name in NAMES])


def holds_in(
    screen: Screen,
    found: Screened,
    goals: Sequence[Goal],
    simulated: Mapping[str, float | None] | None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> int:
    """In how many of ``draws`` all goals are met.

    Each draw multiplies every part of all steps by a log-normal factor of that part's uncertainty, and
    moves the memory beside weights and KV evenly within its known error. ``simulated``: metrics of a
    run, which then change as the estimate's do; none: the estimate's own are taken.
    """
    steady, random = found.sized.steady, np.random.default_rng(seed)
    sigma = np.minimum(1.0, uncertainties(steady))
    scenario, mode = found.scenario, found.scenario.engine.mode
    pools = overhead_variants(scenario.model, scenario.node, scenario.engine, mode)
    tokens = math.ceil(steady.mix.full_tokens)
    few, many = sorted(max(1, p.count(tokens).requests) for p in pools)
    before, count = steady.most, 0
    try:
        for _ in range(draws):
            factors = np.exp(sigma * random.standard_normal(PARTS))
            steady.drawn(factors).most = round(few + (many - few) * random.random())
            drawn = screen.at(found.sized, found.nodes)
            assert drawn is not None
            count += not drawn.served.overloaded and all(
                goal.holds(_moved(goal, simulated, found.served.figures, drawn.served.figures))
                for goal in goals
            )
    finally:
        steady.drawn(np.ones(PARTS)).most = before
    return count


def _moved(
    goal: Goal,
    simulated: Mapping[str, float | None] | None,
    expected: Mapping[str, float],
    drawn: Mapping[str, float],
) -> float | None:
    name = goal.metric
    if simulated is None:
        return None if name == GOODPUT else drawn.get(name)
    base = simulated.get(name)
    if base is None or name == GOODPUT:  # which the estimate does not know
        return base
    return base * drawn[name] / expected[name] if expected.get(name) else drawn.get(name)
