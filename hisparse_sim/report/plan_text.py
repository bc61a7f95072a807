"""A plan for a terminal: what to take, what comes next, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hisparse_sim.planning.load import Asked
from hisparse_sim.planning.price import Prices
from hisparse_sim.planning.runs import why_not_run
from hisparse_sim.planning.search import Answer, Plan, Step, shown
from hisparse_sim.planning.slo import Goal
from hisparse_sim.serve.start import start_command

MOST_STEPS = 3
"""Of those that cost nothing, and of those that cost."""
UNPRICED = "no prices given (plan.prices): cost is counted in GPUs and GPU-hours"


def plan_text(answer: Answer, goals: Sequence[Goal], asked: Asked, prices: Prices) -> str:
    """The answer, whole."""
    return "\n".join(_lines(answer, goals, asked, prices))


def _lines(answer: Answer, goals: Sequence[Goal], asked: Asked, prices: Prices) -> Iterator[str]:
    goal = ", ".join(g.text for g in goals) or "no goal"
    yield f"asked: {asked.shown()}, {goal}"
    if not prices.known:
        yield UNPRICED
    yield ""
    best = answer.best
    if best is None:
        yield "no combination that was simulated holds"
    else:
        scenario = best.found.scenario
        yield f"recommended: {shown(best.found)}"
        yield from (f"  {line}" for line in _about(best, goals, asked, prices))
        yield f"  {start_command(scenario.model, scenario.node, scenario.engine)}"
        yield from _engines(best)
    for title, plans in (("runners-up", answer.runners_up), ("simulated, and do not hold", answer.failed)):
        if plans:
            yield ""
            yield f"{title}:"
        for plan in plans:
            yield f"- {shown(plan.found)}"
            yield from (f"    {line}" for line in _about(plan, goals, asked, prices))
    if best is not None and answer.next_steps:
        yield ""
        yield "one change, by estimate:"
        ordered = sorted(answer.next_steps, key=_worth)
        paid = [step for step in ordered if step.hourly > 0]
        free = ordered[: len(ordered) - len(paid)]
        for step in [*_each_field(free)[:MOST_STEPS], *_each_field(paid)[:MOST_STEPS]]:
            price = f"{step.hourly:+,.2f} {prices.unit}" if abs(step.hourly) > 1e-9 else "for nothing"
            yield f"- {step.change}: {price}, {step_load(asked, step.load)}"
    yield ""
    refused = sum(answer.refused.values())
    looked = f", of which {answer.drawn:,} were drawn and estimated" if answer.drawn else ""
    yield (
        f"{answer.combinations:,} combinations{looked}; {refused:,} choices would not start, "
        f"{answer.screened_out:,} ruled out by estimate, {answer.simulations} simulations"
    )
    if answer.unsettled:
        yield (
            f"not settled: {answer.unsettled:,} more could still win by estimate and were not simulated "
            "(--simulate N for more)"
        )


def _each_field(ordered: Sequence[Step]) -> list[Step]:
    """The first of each field."""
    first: dict[str, Step] = {}
    for step in ordered:
        first.setdefault(step.change.split(" ")[0], step)
    return list(first.values())


def _engines(best: Plan) -> Iterator[str]:
    """How often to start it."""
    cluster = best.found.scenario.cluster
    units, engines = best.found.nodes // best.found.sized.span, cluster.instances
    if engines > 1:
        yield f"  on each of {units * engines} engines, {engines} behind a {cluster.router} router"
    if units > 1:
        each = "such routers" if engines > 1 else "independent engines"
        yield f"  {'' if engines > 1 else 'on each of '}{units} {each}, behind an even split of the load"


def _worth(step: Step) -> tuple[bool, float]:
    """What costs nothing first, then the most load for the money."""
    return step.hourly > 0, step.hourly / step.load if step.hourly > 0 else -step.load


def step_load(asked: Asked, load: float) -> str:
    """More load."""
    return f"{load:+,.0f} clients" if asked.kind == "clients" else f"{load:+.3g} arrivals/s"


def _about(plan: Plan, goals: Sequence[Goal], asked: Asked, prices: Prices) -> Iterator[str]:
    cost = prices.per_million(plan.hourly, plan.output_tokens_per_s)
    how = "simulated" if plan.simulated else f"by estimate alone: {why_not_run(plan.found.scenario)}"
    yield (
        f"{plan.hourly:,.2f} {prices.unit}, {cost:,.2f} {prices.token_unit}, "
        f"{plan.output_tokens_per_s:,.0f} output tokens/s ({how})"
    )
    if plan.simulated:
        metrics = plan.simulated.metrics
        met = [f"{g.metric} {_value(g.metric, v)}" for g in goals if (v := metrics.get(g.metric)) is not None]
        if met:
            yield ", ".join(met)
        if plan.simulated.broken:
            yield f"breaks {', '.join(plan.simulated.broken)}; limit: {plan.simulated.limit}"
        else:
            yield f"limit: {plan.simulated.limit}"
    if plan.holds and plan.holds_in is not None:
        yield f"largest load: {_largest(plan, asked)}; then binds {plan.binds or 'no goal'}"
        yield f"holds in {plan.holds_in} of 100 draws of the profile's uncertainties"
    if plan.alike:
        yield f"{plan.alike:,} more choices have the same estimate"


def _largest(plan: Plan, asked: Asked) -> str:
    run = plan.largest_run
    estimate = f"{asked.shown(plan.largest)} by estimate" if plan.binds else "not bounded by a goal"
    if run is None:
        return estimate
    low, high = run
    until = f", not {asked.shown(high)}" if high is not None else " or more"
    return f"{asked.shown(low)}{until} (simulated), {estimate}"


def _value(name: str, value: float) -> str:
    if name == "goodput":
        return f"{value:.1%}"
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def as_json(answer: Answer, asked: Asked, prices: Prices) -> dict[str, Any]:
    """Of ``--json``."""

    def one(plan: Plan) -> dict[str, Any]:
        scenario = plan.found.scenario
        run = plan.simulated
        return {
            "choice": dict(plan.found.sized.point.choice),
            "nodes": plan.found.nodes,
            "node": scenario.node.name,
            "holds": plan.holds,
            "judged_by": "simulation" if run else "estimate",
            "hourly": plan.hourly,
            "cost_per_million_output_tokens": prices.per_million(plan.hourly, plan.output_tokens_per_s),
            "output_tokens_per_s": plan.output_tokens_per_s,
            "metrics": dict(run.metrics) if run else plan.found.served.figures,
            "broken": list(run.broken) if run else [],
            "limit": run.limit if run else plan.found.served.limit,
            "largest_load": plan.largest,
            "largest_load_simulated": list(plan.largest_run) if plan.largest_run else None,
            "binds": plan.binds,
            "holds_in_of_100": plan.holds_in,
            "alike": plan.alike,
            "command": start_command(scenario.model, scenario.node, scenario.engine),
        }

    return {
        "asked": {"kind": asked.kind, "amount": asked.amount},
        "unit": prices.unit,
        "recommended": one(answer.best) if answer.best else None,
        "runners_up": [one(plan) for plan in answer.runners_up],
        "failed": [one(plan) for plan in answer.failed],
        "next": [{"change": s.change, "hourly": s.hourly, "load": s.load} for s in answer.next_steps],
        "combinations": answer.combinations,
        "refused": dict(answer.refused),
        "screened_out": answer.screened_out,
        "simulations": answer.simulations,
        "unsettled": answer.unsettled,
        "drawn": answer.drawn or None,
    }
