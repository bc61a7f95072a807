"""From a space and goals to a recommendation: screen all, simulate the best until no other can win."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hisparse_sim.errors import Infeasible
from hisparse_sim.planning.draws import holds_in
from hisparse_sim.planning.load import asked_of, loaded
from hisparse_sim.planning.price import Prices
from hisparse_sim.planning.screen import MARGIN, Screen, Screened, Sized
from hisparse_sim.planning.slo import GOODPUT, Goal, of_summary, slo_of
from hisparse_sim.planning.space import Space
from hisparse_sim.scenario.plan import Objective
from hisparse_sim.scenario.scenario import Scenario

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is, and how much there is."""
RUNNERS_UP = 3
CLOSE = 1.05
"""A simulated largest load is looked for until what holds and what does not are so close."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run of one machine with its share. ``metrics``: by goal; ``broken``: goals not met."""

    metrics: Mapping[str, float | None]
    output_tokens_per_s: float
    good_per_s: float
    broken: tuple[str, ...]
    limit: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A combination that was judged. ``simulated``: none for what only the estimate judged.

    ``value``: of the objective, smaller is better. ``alike``: other choices of the same estimate.
    ``largest``: load in all that holds by estimate; ``largest_run``: (holds, does not) by simulation;
    ``binds``: what more load breaks, of the simulation where it came so far.
    """

    found: Screened
    hourly: float
    value: tuple[float, ...]
    simulated: Simulated | None
    alike: int = 0
    largest: float = 0.0
    binds: str = ""
    largest_run: tuple[float, float | None] | None = None
    holds_in: int | None = None

    @property
    def holds(self) -> bool:
        """As simulated, or where it cannot be, as estimated."""
        return self.found.holds if self.simulated is None else not self.simulated.broken

    @property
    def output_tokens_per_s(self) -> float:
        """Of all machines."""
        own = self.simulated
        return self.found.output_tokens_per_s if own is None else own.output_tokens_per_s


@dataclass(frozen=True, slots=True)
class Step:
    """One choice changed: what it costs more an hour and what load it holds more, by estimate."""

    change: str
    hourly: float
    load: float


@dataclass(frozen=True, slots=True)
class Answer:
    """``best``: none where no combination holds. ``unsettled``: how many could still win, unsimulated."""

    best: Plan | None
    runners_up: tuple[Plan, ...]
    failed: tuple[Plan, ...]
    next_steps: tuple[Step, ...]
    combinations: int
    refused: Mapping[str, int]
    screened_out: int
    simulations: int
    unsettled: int
    not_simulated: int


@dataclass
class Search:
    """Asks and remembers. ``most_runs``: simulations for the best; ``bisect_runs``: for a largest load."""

    space: Space
    goals: tuple[Goal, ...]
    objective: Objective
    prices: Prices
    most_runs: int = 12
    bisect_runs: int = 4
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self.screen = Screen(self.goals)
        self.runs: dict[tuple[int, float], Simulated] = {}
        self._spent = 0

    def answer(self) -> Answer:
        """Raises ``Infeasible`` saying what empties the space when nothing is left after screening."""
        sized = self._sized()
        found = [s for each in sized for n in self.space.nodes if (s := self.screen.at(each, n)) is not None]
        alive = [s for s in found if s.may_hold]
        if not alive:
            raise Infeasible(self._empty(sized, found), where="plan")
        groups = self._groups(alive)
        judged, unsettled = self._judge(groups)
        holding = sorted((p for p in judged if p.holds and p.simulated), key=lambda p: p.value)
        guessed = sorted((p for p in judged if p.holds and not p.simulated), key=lambda p: p.value)
        ranked = [*holding, *guessed] if holding else guessed
        shown = [self._completed(plan) for plan in ranked[: 1 + RUNNERS_UP]]
        best = shown[0] if shown else None
        failed = sorted((p for p in judged if not p.holds), key=lambda p: p.value)[:RUNNERS_UP]
        return Answer(
            best,
            tuple(shown[1:]),
            tuple(failed),
            tuple(self._next(best, sized)) if best else (),
            self.space.size,
            dict(self.screen.refused),
            len(found) - len(alive),
            self._spent,
            unsettled,
            sum(not can_run(g[0].scenario, g[0].sized) for g in groups),
        )

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def _sized(self) -> list[Sized]:
        found = []
        for index, point in enumerate(self.space.points):
            if index % 64 == 0:
                self._tell("screening", index, len(self.space.points))
            if (sized := self.screen.size(point)) is not None:
                found.append(sized)
        return found

    def _hourly(self, found: Screened) -> float:
        return self.prices.hourly(found.scenario.node, found.nodes)

    def value(self, found: Screened, tokens_per_s: float, good_per_s: float) -> tuple[float, ...]:
        """Of the objective: smaller is better; ties go to what is cheaper, then to fewer machines."""
        hourly = self._hourly(found)
        cost = self.prices.per_million(hourly, tokens_per_s)
        if self.objective == "goodput":
            return (-good_per_s, hourly, found.nodes)
        if self.objective == "nodes":
            return (found.nodes, found.nodes * found.scenario.node.gpus, cost)
        return (cost, hourly, found.nodes)

    def _expected(self, found: Screened) -> tuple[float, ...]:
        return self.value(found, found.output_tokens_per_s, self._requests_per_s(found))

    def _requests_per_s(self, found: Screened) -> float:
        return found.output_tokens_per_s / max(1.0, found.sized.steady.mix.output_tokens)

    def _hoped(self, found: Screened) -> tuple[float, ...]:
        """The best that it could turn out to be."""
        more = 1 / (1 - MARGIN)
        return self.value(found, found.output_tokens_per_s * more, self._requests_per_s(found) * more)

    def _groups(self, alive: Sequence[Screened]) -> list[list[Screened]]:
        """Combinations of one estimate and price together; the best first, those that hold before others."""
        groups: dict[Any, list[Screened]] = {}
        for found in alive:
            figures = tuple(f"{v:.6g}" for v in found.served.figures.values())
            key = (found.nodes, self._hourly(found), f"{found.output_tokens_per_s:.6g}", figures)
            groups.setdefault(key, []).append(found)
        return sorted(groups.values(), key=lambda g: (not g[0].holds, self._expected(g[0])))

    def _judge(self, groups: Sequence[list[Screened]]) -> tuple[list[Plan], int]:
        """Simulate in order until nothing left could beat the best, or the runs are spent."""
        judged: list[Plan] = []
        best: tuple[float, ...] | None = None
        failed: dict[int, int] = {}
        unsettled = 0
        for group in groups:
            found = group[0]
            if not can_run(found.scenario, found.sized):
                if found.holds:
                    value = self._expected(found)
                    judged.append(Plan(found, self._hourly(found), value, None, len(group) - 1))
                continue
            if best is not None and self._hoped(found) >= best:
                continue
            if found.nodes <= failed.get(id(found.sized), 0):
                continue  # more machines did not hold
            if self._spent >= self.most_runs:
                unsettled += len(group)
                continue
            self._tell("simulating", self._spent, self.most_runs)
            run = self._run(found)
            value = self.value(found, run.output_tokens_per_s, run.good_per_s)
            judged.append(Plan(found, self._hourly(found), value, run, len(group) - 1))
            if run.broken:
                failed[id(found.sized)] = found.nodes
            elif best is None or value < best:
                best = value
        return judged, unsettled

    def _run(self, found: Screened, amount: float | None = None) -> Simulated:
        asked = asked_of(found.scenario.workload)
        total = asked.amount if amount is None else amount
        units = found.nodes // found.sized.span
        share = total / units
        each = math.ceil(share) if asked.kind == "clients" else share
        key = (id(found.sized), each)
        if key not in self.runs:
            self._spent += 1
            self.runs[key] = simulated(found.scenario, each, self.goals)
        one = self.runs[key]
        scale = units * share / each
        return replace(
            one,
            output_tokens_per_s=one.output_tokens_per_s * scale,
            good_per_s=one.good_per_s * scale,
        )

    def _completed(self, plan: Plan) -> Plan:
        """With the largest load, what binds there, and the draws."""
        found = plan.found
        self._tell("largest loads", self._spent, self._spent)
        largest, binds = self.screen.largest(found.sized, found.nodes)
        metrics = plan.simulated.metrics if plan.simulated else None
        draws = holds_in(self.screen, found, self.goals, metrics)
        run = None
        if plan.simulated and self.bisect_runs:
            run, said = self._largest_run(found, largest)
            binds = said or binds
        return replace(plan, largest=largest, binds=binds, largest_run=run, holds_in=draws)

    def _largest_run(self, found: Screened, guess: float) -> tuple[tuple[float, float | None], str]:
        """Load that holds and load that does not, as far as the runs go, and what the latter breaks."""
        asked = asked_of(found.scenario.workload)
        low, high, said = asked.amount, None, ""
        trial = min(max(guess, low * 1.1), low * 4)
        for _ in range(self.bisect_runs):
            if asked.kind == "clients":
                trial = float(max(math.ceil(trial), low + 1))
            if high is not None and (trial >= high or high / low <= CLOSE):
                break
            run = self._run(found, trial)
            if run.broken:
                high, said = trial, f"{', '.join(run.broken)}: {run.limit}"
            else:
                low = trial
            trial = low * 1.5 if high is None else (low + high) / 2
        return (low, high), said

    def _next(self, best: Plan, sized: Sequence[Sized]) -> Iterator[Step]:
        """One choice changed, or the next count of machines, that holds more load or costs less."""
        found, choice = best.found, best.found.sized.point.choice
        base = self.screen.largest(found.sized, found.nodes)[0]

        def step(change: str, other: Sized, nodes: int) -> Iterator[Step]:
            if nodes % other.span:
                return
            hourly = self.prices.hourly(other.point.scenario.node, nodes) - best.hourly
            load = self.screen.largest(other, nodes)[0] - base
            if load > 0.01 * base:
                yield Step(change, hourly, load)

        for other in sized:
            changed = [k for k, v in other.point.choice.items() if v != choice.get(k)]
            if len(changed) == 1:
                yield from step(f"{changed[0]} {other.point.choice[changed[0]]}", other, found.nodes)
        more = found.nodes + found.sized.span
        yield from step(f"{more} machines", found.sized, more)

    def _empty(self, sized: Sequence[Sized], found: Sequence[Screened]) -> str:
        total = len(self.space.points)
        if not sized:
            what = Counter(self.screen.refused).most_common(1)[0]
            return f"no choice is left: none of {total:,} would start; {what[1]:,} for this reason: {what[0]}"
        if not found:
            return f"no count of machines {list(self.space.nodes)} is a multiple of what a replica spans"
        breaks = Counter(goal.text for each in found for goal in each.broken)
        alone = [text for text, count in breaks.items() if count == len(found)]
        parts = [f"{text} rules out {count:,}" for text, count in breaks.most_common(3)]
        nearest = min(found, key=lambda s: max(g.used(s.served.least.get(g.metric)) for g in s.broken))
        worst = max(nearest.broken, key=lambda g: g.used(nearest.served.least.get(g.metric)))
        least = nearest.served.least.get(worst.metric, math.inf)
        best = ""
        if least < math.inf:
            best = f"; the nearest ({shown(nearest)}) has {worst.metric} {least:.3g} s at best"
        which = " alone" if len(alone) == 1 and len(parts) == 1 else ""
        started = f"{len(found):,} of {self.space.size:,} combinations start, and "
        return f"no combination is left: {started}{', '.join(parts)}{which}{best}"


def shown(found: Screened) -> str:
    """The choice in words."""
    choice = [f"{k.rsplit('.', 1)[-1]} {v}" for k, v in found.sized.point.choice.items()]
    return ", ".join([*choice, f"{found.nodes} x {found.scenario.node.name}"])


def can_run(scenario: Scenario, sized: Sized) -> bool:
    """Whether a simulation of one machine stands for it."""
    return scenario.engine.dp == 1 and sized.span == 1


def simulated(scenario: Scenario, amount: float, goals: Sequence[Goal]) -> Simulated:
    """``scenario`` with ``amount`` of load, against ``goals``. Ctrl-C raises ``KeyboardInterrupt``."""
    from hisparse_sim.simulation.run import simulate

    asked = asked_of(scenario.workload)
    slo = slo_of(goals, scenario.slo)
    each = scenario.model_copy(
        update={"workload": loaded(scenario.workload, asked, amount), "slo": slo, "plan": None}
    )
    summary = simulate(each).summary
    if not summary["complete"]:
        raise KeyboardInterrupt
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
