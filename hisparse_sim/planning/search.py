"""From a space and goals to a recommendation: screen all, simulate the best until no other can win."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hisparse_sim.errors import Infeasible
from hisparse_sim.planning.axes import Axis, Choice
from hisparse_sim.planning.draws import holds_in
from hisparse_sim.planning.load import asked_of
from hisparse_sim.planning.price import Prices
from hisparse_sim.planning.runs import Runs, Simulated, why_not_run
from hisparse_sim.planning.sampling import Place, Rank, drawn, neighbours
from hisparse_sim.planning.screen import MARGIN, Screen, Screened, Sized
from hisparse_sim.planning.slo import Goal
from hisparse_sim.planning.space import NODES, Space
from hisparse_sim.scenario.plan import Objective

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is, and how much there is."""
RUNNERS_UP = 3
TRIALS = 2_000
"""Choices drawn from a space that is too large to look through whole."""
CLOSE = 1.05
"""A simulated largest load is looked for until what holds and what does not are so close."""


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
    drawn: int = 0
    """Combinations that were drawn; 0 where all were estimated."""


LargestRun = tuple[tuple[float, float | None], str]
"""Load that holds and load that does not, and what the latter breaks."""


@dataclass
class Search:
    """Asks and remembers. ``most_runs``: simulations for the best; ``bisect_runs``: for a largest load;
    ``jobs``: simulations at a time; ``trials``: choices drawn where the space has no points made."""

    space: Space
    goals: tuple[Goal, ...]
    objective: Objective
    prices: Prices
    most_runs: int = 12
    bisect_runs: int = 4
    progress: Progress | None = None
    jobs: int = 1
    trials: int = TRIALS

    def __post_init__(self) -> None:
        self.screen = Screen(self.goals)
        self.runs = Runs(self.goals, self.jobs)
        self._sized: dict[tuple[Any, ...], Sized | None] = {}
        self._found: dict[tuple[int, int], Screened] = {}

    def answer(self) -> Answer:
        """Raises ``Infeasible`` saying what empties the space when nothing is left after screening,
        ``LostBackend`` when processes are lost."""
        if self.space.points:
            self._screen_all()
        else:
            self._draw()
        sized = [each for each in self._sized.values() if each is not None]
        found = list(self._found.values())
        alive = [s for s in found if s.may_hold]
        if not alive:
            raise Infeasible(self._empty(sized, found), where="plan")
        groups = self._groups(alive)
        judged, unsettled = self._judge(groups)
        holding = sorted((p for p in judged if p.holds and p.simulated), key=lambda p: p.value)
        guessed = sorted((p for p in judged if p.holds and not p.simulated), key=lambda p: p.value)
        ranked = [*holding, *guessed] if holding else guessed
        shown = self._completed(ranked[: 1 + RUNNERS_UP])
        best = shown[0] if shown else None
        failed = sorted((p for p in judged if not p.holds), key=lambda p: p.value)[:RUNNERS_UP]
        return Answer(
            best,
            tuple(shown[1:]),
            tuple(failed),
            tuple(self._next(best)) if best else (),
            self.space.size,
            dict(self.screen.refused),
            len(found) - len(alive),
            self.runs.spent,
            unsettled,
            0 if self.space.points else len(self._ranked),
        )

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def _screen_all(self) -> None:
        for index, point in enumerate(self.space.points):
            if index % 64 == 0:
                self._tell("screening", index, len(self.space.points))
            sized = self._sized[self._values(point.choice)] = self.screen.size(point)
            if sized is not None:
                for nodes in self.space.nodes:
                    self._at(sized, nodes)

    def _values(self, choice: Choice) -> tuple[Any, ...]:
        return tuple(repr(choice.get(axis.path)) for axis in self.space.axes)

    def _of(self, choice: Choice) -> Sized | None:
        """A choice that may not have been asked for before."""
        key = self._values(choice)
        if key not in self._sized:
            self._sized[key] = self.screen.size(self.space.point(choice))
        return self._sized[key]

    def _at(self, sized: Sized, nodes: int) -> Screened | None:
        found = self.screen.at(sized, nodes)
        if found is not None:
            self._found[id(sized), nodes] = found
        return found

    def _draw(self) -> None:
        self._ranked: set[Place] = set()
        axes = (*self.space.axes, Axis(NODES, self.space.nodes))

        def rank(place: Place) -> Rank:
            self._ranked.add(place)
            values = [axis.values[n] for axis, n in zip(axes, place, strict=True)]
            sized = self._of(dict(zip([axis.path for axis in axes[:-1]], values, strict=False)))
            found = self._at(sized, values[-1]) if sized is not None else None
            if found is None:
                return (3.0, 0.0)
            if found.holds or found.may_hold:
                return (0.0 if found.holds else 1.0, *self._expected(found))
            return (2.0, max(g.used(found.served.least.get(g.metric)) for g in found.broken))

        drawn(axes, rank, self.trials, told=lambda done, total: self._tell("drawing choices", done, total))

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
        unsettled, left = 0, list(groups)
        self.runs.told = lambda spent: self._tell("simulating", spent, self.most_runs)
        while left:
            batch: list[list[Screened]] = []
            while left and len(batch) < self.jobs:
                group = left.pop(0)
                found = group[0]
                if why_not_run(found.scenario):
                    if found.holds:
                        value = self._expected(found)
                        judged.append(Plan(found, self._hourly(found), value, None, len(group) - 1))
                    continue
                if best is not None and self._hoped(found) >= best:
                    continue
                if found.nodes <= failed.get(id(found.sized), 0):
                    continue  # more machines did not hold
                if self.runs.spent + len(batch) >= self.most_runs:
                    unsettled += len(group)
                    continue
                batch.append(group)
            asks = [(group[0], self._asked(group[0])) for group in batch]
            for group, run in zip(batch, self.runs.at(asks), strict=True):
                found = group[0]
                value = self.value(found, run.output_tokens_per_s, run.good_per_s)
                judged.append(Plan(found, self._hourly(found), value, run, len(group) - 1))
                if run.broken:
                    failed[id(found.sized)] = max(found.nodes, failed.get(id(found.sized), 0))
                elif best is None or value < best:
                    best = value
        return judged, unsettled

    def _asked(self, found: Screened) -> float:
        return asked_of(found.scenario.workload).amount

    def _completed(self, plans: Sequence[Plan]) -> list[Plan]:
        """With the largest load of each, what binds there, and the draws."""
        self.runs.told = lambda spent: self._tell("largest loads", spent, spent)
        made = []
        for plan in plans:
            found = plan.found
            largest, binds = self.screen.largest(found.sized, found.nodes)
            metrics = plan.simulated.metrics if plan.simulated else None
            draws = holds_in(self.screen, found, self.goals, metrics)
            made.append(replace(plan, largest=largest, binds=binds, holds_in=draws))
        for n, (run, said) in self._largest_runs(made).items():
            made[n] = replace(made[n], largest_run=run, binds=said or made[n].binds)
        return made

    def _largest_runs(self, plans: Sequence[Plan]) -> dict[int, LargestRun]:
        """Of each that can be simulated, all a step at a time."""
        asking = {
            n: self._largest_run(plan.found, plan.largest)
            for n, plan in enumerate(plans)
            if plan.simulated and self.bisect_runs
        }
        loads = {n: next(search) for n, search in asking.items()}
        found: dict[int, LargestRun] = {}
        while loads:
            runs = self.runs.at([(plans[n].found, load) for n, load in loads.items()])
            for n, run in zip(list(loads), runs, strict=True):
                try:
                    loads[n] = asking[n].send(run)
                except StopIteration as end:
                    found[n] = end.value
                    del loads[n]
        return found

    def _largest_run(self, found: Screened, guess: float) -> Generator[float, Simulated, LargestRun]:
        """Yields loads, is sent what they do, and returns what that says of the largest."""
        asked = asked_of(found.scenario.workload)
        low, high, said = asked.amount, None, ""
        trial = min(max(guess, low * 1.1), low * 4)
        for _ in range(self.bisect_runs):
            if asked.kind == "clients":
                trial = float(max(math.ceil(trial), low + 1))
            if high is not None and (trial >= high or high / low <= CLOSE):
                break
            run = yield trial
            if run.broken:
                high, said = trial, f"{', '.join(run.broken)}: {run.limit}"
            else:
                low = trial
            trial = low * 1.5 if high is None else (low + high) / 2
        return (low, high), said

    def _next(self, best: Plan) -> Iterator[Step]:
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

        axes = self.space.axes
        place = tuple(axis.values.index(choice[axis.path]) for axis in axes)
        for near in neighbours(place, axes):
            changed = next(axis for axis, a, b in zip(axes, place, near, strict=True) if a != b)
            value = changed.values[near[axes.index(changed)]]
            other = self._of({**choice, changed.path: value})
            if other is not None:
                yield from step(f"{changed.path} {value}", other, found.nodes)
        more = found.nodes + found.sized.span
        yield from step(f"{more} machines", found.sized, more)

    def _empty(self, sized: Sequence[Sized], found: Sequence[Screened]) -> str:
        total = len(self._sized)
        if not sized:
            what = Counter(self.screen.refused).most_common(1)[0]
            return f"no choice is left: none of {total:,} would start; {what[1]:,} for this reason: {what[0]}"
        if not found:
            spans = ", ".join(f"{n:,}" for n in sorted({each.span for each in sized}))
            counts = ", ".join(f"{n:,}" for n in self.space.nodes)
            return f"what is started takes {spans} machines, and nodes {counts} has no multiple of that"
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
