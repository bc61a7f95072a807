"""Which inputs an answer hangs on: each moved alone within what is known of it, by estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hisparse_sim.cost.term import GRADE_UNCERTAINTY
from hisparse_sim.cost.work import PARTS
from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.estimate.concurrency import POOL_OVERHEAD_SHARE, overhead_variants
from hisparse_sim.estimate.latency import LINK_SPREAD
from hisparse_sim.planning.draws import DRAWS, NAMES, uncertainties
from hisparse_sim.planning.load import asked_of
from hisparse_sim.planning.point import Point
from hisparse_sim.planning.screen import Screen, Screened, Sized
from hisparse_sim.planning.slo import METRICS, Goal
from hisparse_sim.scenario.scenario import Scenario

TOKENS, LARGEST = "output_tokens_per_s", "largest_load"
ANSWERS = (TOKENS, LARGEST, *METRICS)

_WORDS = {
    "attention": "attention kernels",
    "moe": "expert kernels",
    "dense": "dense layers",
    "allreduce": "exchange between the GPUs",
    "head": "language-model head",
    "overhead": "step overhead: launches, host",
    "resolve": "resolving the selection",
    "draft": "drafting",
}
"""Parts that have an uncertainty of their own; those of the host link are moved with it."""


@dataclass(frozen=True, slots=True)
class Swing:
    """The answer with an input at its low and its high end. ``spread``: what was moved, in words."""

    what: str
    spread: str
    low: float
    high: float

    @property
    def width(self) -> float:
        """Between the two."""
        return abs(self.high - self.low)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """``of``: which answer, ``base`` as the inputs are; ``swings``: the widest first, without effect last."""

    of: str
    base: float
    swings: tuple[Swing, ...]


def sensitivity(scenario: Scenario, of: str, goals: tuple[Goal, ...] = ()) -> Sensitivity:
    """``of``: one of ``ANSWERS``; the largest load needs ``goals``.

    Raises ``Infeasible`` for a scenario that does not start or is overloaded, ``InputError`` for an
    answer that is not known.
    """
    if of not in ANSWERS:
        raise InputError(f"{of!r} is not known; one of {', '.join(ANSWERS)}", where="--of")
    if of == LARGEST and not goals:
        raise InputError(f"{LARGEST} needs goals; give --slo 'ttft_p95<=30s'", where="--of")
    asked = _Asked(scenario, of, goals)
    base = asked.value(asked.found)
    if not math.isfinite(base):
        raise Infeasible(
            "requests come faster than they are served; there is no steady answer", where="workload"
        )
    swings = sorted(asked.swings(), key=lambda swing: -swing.width)
    return Sensitivity(of, base, tuple(swings))


class _Asked:
    """The scenario as it is, and with one thing changed."""

    def __init__(self, scenario: Scenario, of: str, goals: tuple[Goal, ...]) -> None:
        self.scenario, self.of = scenario, of
        self.screen = Screen(goals)
        self.sized = self._sized(scenario)
        found = self.screen.at(self.sized, self.sized.span)
        assert found is not None
        self.found: Screened = found
        asked_of(scenario.workload)

    def _sized(self, scenario: Scenario) -> Sized:
        sized = self.screen.size(Point(scenario, {}, ""))
        if sized is None:
            raise Infeasible(next(reversed(self.screen.refused)), where=scenario.name)
        return sized

    def value(self, found: Screened) -> float:
        if self.of == LARGEST:
            return self.screen.largest(found.sized, found.nodes)[0]
        if self.of == TOKENS:
            return found.output_tokens_per_s
        return found.served.figures[self.of]

    def _of(self, sized: Sized) -> float:
        found = self.screen.at(sized, sized.span)
        assert found is not None
        return self.value(found)

    def _changed(self, **change: Any) -> float:
        """The answer with parts of the scenario replaced; 0 or infinity where it would not start."""
        try:
            return self._of(self._sized(self.scenario.model_copy(update=change)))
        except Infeasible:
            return 0.0 if self.of in (TOKENS, LARGEST) else math.inf

    def swings(self) -> Iterator[Swing]:
        yield from self._machine()
        yield from self._misses()
        yield self._reserve()
        yield from self._kernels()
        yield self._together()

    def _machine(self) -> Iterator[Swing]:
        node = self.scenario.node
        link, of_sheet = node.host_link, GRADE_UNCERTAINTY["datasheet"]
        rates = [name for name in type(link).model_fields if name.endswith("_bytes_per_s")]

        def of_link(factor: float) -> Any:
            change = {name: getattr(link, name) * factor for name in rates}
            return node.model_copy(update={"host_link": link.model_copy(update=change)})

        def of_dram(factor: float) -> Any:
            return node.model_copy(update={"dram_bytes_per_s": node.dram_bytes_per_s * factor})

        def of_hbm(factor: float) -> Any:
            gpu = node.gpu.model_copy(update={"hbm_bytes_per_s": node.gpu.hbm_bytes_per_s * factor})
            return node.model_copy(update={"gpu": gpu})

        changes: tuple[tuple[str, float, Callable[[float], Any]], ...] = (
            (f"host link ({link.kind}) rates", LINK_SPREAD, of_link),
            ("host memory's rate", of_sheet, of_dram),
            ("HBM rate, of parts priced from data sheets", of_sheet, of_hbm),
        )
        for what, share, at in changes:
            low, high = (self._changed(node=at(1 + sign * share)) for sign in (-1, 1))
            yield Swing(what, f"+-{share:.0%}", low, high)

    def _misses(self) -> Iterator[Swing]:
        steady = self.sized.steady
        misses = steady.cost.misses
        if misses is None:
            return
        context = round(steady.mix.context_tokens)
        batch = max(1, round(self.found.served.decoding))
        resident = steady.pools.resident_share(math.ceil(steady.mix.full_tokens), batch)
        least, most = misses.share_range(context, resident_share=resident)
        low, high = self._changed(locality=float(least)), self._changed(locality=float(most))
        yield Swing("share of selected rows that miss", f"{least:.1%} to {most:.1%}", low, high)

    def _reserve(self) -> Swing:
        steady, scenario = self.sized.steady, self.scenario
        pools = overhead_variants(scenario.model, scenario.node, scenario.engine, scenario.engine.mode)
        tokens, before = math.ceil(steady.mix.full_tokens), steady.most
        found = []
        try:
            for pool in pools:
                steady.most = max(1, pool.count(tokens).requests)
                found.append(self._of(self.sized))
        finally:
            steady.most = before
        more, less = found
        return Swing("memory beside weights and KV", f"+-{POOL_OVERHEAD_SHARE:.0%}", less, more)

    def _kernels(self) -> Iterator[Swing]:
        sigma = uncertainties(self.sized.steady)
        for index, name in enumerate(NAMES):
            if name in _WORDS and sigma[index] > 0:
                low, high = (self._factored(index, 1 + s * min(0.9, sigma[index])) for s in (-1, 1))
                yield Swing(_WORDS[name], f"+-{sigma[index]:.1%}", low, high)

    def _factored(self, index: int, factor: float) -> float:
        factors = np.ones(PARTS)
        factors[index] = factor
        return self._drawn(factors)

    def _drawn(self, factors: np.ndarray[Any, np.dtype[np.float64]]) -> float:
        steady = self.sized.steady
        try:
            steady.drawn(factors)
            return self._of(self.sized)
        finally:
            steady.drawn(np.ones(PARTS))

    def _together(self) -> Swing:
        """All parts at once, drawn: the tenth from below and from above."""
        sigma, random = np.minimum(1.0, uncertainties(self.sized.steady)), np.random.default_rng(0)
        found = [self._drawn(np.exp(sigma * random.standard_normal(PARTS))) for _ in range(DRAWS)]
        low, high = np.quantile(found, [0.1, 0.9], method="nearest")
        return Swing(
            "calibration, all parts at once", f"10 % to 90 % of {DRAWS} draws", float(low), float(high)
        )
