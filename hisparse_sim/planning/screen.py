"""Every combination priced by the closed form, as fast as what it depends on allows.

Step prices hang on model, node, parallelism and formats, not on pools or limits, and prefill on the
token budget; combinations that agree in those share them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from hisparse_sim.cost.profile import Profile, profile_for
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.errors import HiSparseError, Infeasible
from hisparse_sim.estimate.concurrency import mode_pools
from hisparse_sim.estimate.mix import Mix, mix_of
from hisparse_sim.estimate.steady import Chunks, Load, Served, Steady
from hisparse_sim.memory.host import place
from hisparse_sim.memory.sglang_pools import chunk_tokens
from hisparse_sim.planning.load import Asked, asked_of, begins_at_once, loaded, requests_in_all
from hisparse_sim.planning.point import Point
from hisparse_sim.planning.slo import GOODPUT, Goal
from hisparse_sim.scenario.check import check_estimated
from hisparse_sim.scenario.scenario import Scenario

MARGIN = 0.2
"""A combination is ruled out when it breaks a goal with so much less load and no queue by chance."""

_NOT_PRICED = (
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "host_pool_gib",
    "long_prefill_token_threshold", "enable_prefix_caching", "policy", "async_scheduling", "watermark",
    "shared_host_pool", "indexer_offload_gib", "kv_offload_gib", "transfer_delay_steps", "single_step",
    "reserve_gib", "available_kv_gib", "num_gpu_blocks", "kv_tokens", "version",
)  # fmt: skip
"""Fields of the engine that no step's price hangs on; a test holds them to it."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A choice that starts: what one replica does. ``replicas`` are on ``span`` machines together."""

    point: Point
    steady: Steady
    replicas: int
    span: int


@dataclass(frozen=True, slots=True)
class Screened:
    """A choice on ``nodes`` machines at the load asked. ``served``: of one replica, expected.

    ``holds``: as expected; ``may_hold``: not ruled out. ``broken``: the goals that rule it out.
    """

    sized: Sized
    nodes: int
    served: Served
    output_tokens_per_s: float
    holds: bool
    may_hold: bool
    broken: tuple[Goal, ...] = ()

    @property
    def scenario(self) -> Scenario:
        """Of one machine (or span of machines), with the workload undivided."""
        return self.sized.point.scenario


@dataclass
class Screen:
    """Remembers what combinations share. ``refused``: reasons of choices that do not start, counted."""

    goals: tuple[Goal, ...]
    refused: dict[str, int] = field(default_factory=dict)
    _costs: dict[Hashable, StepCostModel] = field(default_factory=dict)
    _chunks: dict[Hashable, Chunks] = field(default_factory=dict)
    _profiles: dict[Hashable, Profile] = field(default_factory=dict)
    _texts: dict[int, tuple[Any, str]] = field(default_factory=dict)

    def size(self, point: Point) -> Sized | None:
        """None, with the reason counted, when it would not start or a request can never fit."""
        try:
            if point.refused:
                raise Infeasible(point.refused)
            return self._sized(point)
        except HiSparseError as error:
            self.refused[str(error)] = self.refused.get(str(error), 0) + 1
            return None

    def _sized(self, point: Point) -> Sized:
        scenario = point.scenario
        model, node, engine = scenario.model, scenario.node, scenario.engine
        check_estimated(scenario)
        if engine.disaggregation_mode == "decode":
            raise Infeasible(
                "the closed form of a load is of engines that prefill, too; simulate this with run or sweep",
                where="engine.disaggregation_mode",
            )
        pools = mode_pools(model, node, engine, engine.mode)
        if pools.sizes is None:
            raise Infeasible(pools.reason, where=f"engine.mode {engine.mode}")
        mix = mix_of(scenario.workload, scenario.seed)
        longest, most = mix.longest_tokens, pools.sizes.max_model_len
        if longest > most:
            raise Infeasible(
                f"a request has {longest:,} tokens, the engine takes {most:,}", where="engine.max_model_len"
            )
        cost, key = self._cost(scenario)
        chunks = self._of_prefill(scenario, mix, cost, key, pools.resident_share(round(mix.full_tokens), 8))
        steady = Steady(pools, cost, mix, chunks)
        if not steady.fits:
            raise Infeasible(f"a request of {longest:,} tokens never fits the pools")
        span = place(node, engine).nodes * scenario.cluster.instances
        return Sized(point, steady, scenario.replicas, span)

    def _text(self, record: Any) -> str:
        """The record as text, made once an object."""
        known = self._texts.get(id(record))
        if known is None or known[0] is not record:
            known = self._texts[id(record)] = (record, record.model_dump_json())
        return known[1]

    def _cost(self, scenario: Scenario) -> tuple[StepCostModel, Hashable]:
        engine = scenario.engine
        priced = tuple((n, v) for n, v in engine if n not in _NOT_PRICED)
        key = (self._text(scenario.model), self._text(scenario.node), priced, scenario.calibration,
               scenario.locality)  # fmt: skip
        if key not in self._costs:
            about = (scenario.node.calibration, scenario.calibration)
            if about not in self._profiles:
                self._profiles[about] = profile_for(scenario.node, scenario.calibration)
            self._costs[key] = StepCostModel(
                scenario.model, scenario.node, engine, self._profiles[about], locality=scenario.locality
            )
        return self._costs[key], key

    def _of_prefill(
        self, scenario: Scenario, mix: Mix, cost: StepCostModel, key: Hashable, resident: float
    ) -> Chunks:
        engine = scenario.engine
        budget = engine.max_num_batched_tokens
        if engine.kind == "sglang":
            budget = chunk_tokens(scenario.node, engine)
        if engine.long_prefill_token_threshold:
            budget = min(budget, engine.long_prefill_token_threshold)
        on_host = round(1 - resident, 1)
        asked = (key, id(mix), budget, on_host)
        if asked not in self._chunks:
            self._chunks[asked] = Chunks(cost, mix, budget, on_host)
        return self._chunks[asked]

    def at(self, sized: Sized, nodes: int, amount: float | None = None) -> Screened | None:
        """``sized`` on so many machines under the load asked, or ``amount``; none if they do not divide."""
        if nodes % sized.span:
            return None
        scenario = sized.point.scenario
        asked = asked_of(scenario.workload)
        replicas = nodes // sized.span * sized.replicas
        total = asked.amount if amount is None else amount
        served = self._serve(sized, asked, total / replicas)
        least = self._serve(sized, asked, total * (1 - MARGIN) / replicas)
        broken = tuple(g for g in self.goals if not g.holds(_value(g, least.least)))
        if least.overloaded and not broken:
            broken = (OVERLOAD,)
        holds = not broken and not served.overloaded
        holds = holds and all(g.holds(_value(g, served.figures)) for g in self.goals)
        return Screened(
            sized, nodes, served, served.output_tokens_per_s * replicas, holds, not broken, broken
        )

    def _serve(self, sized: Sized, asked: Asked, amount: float) -> Served:
        steady, workload = sized.steady, sized.point.scenario.workload
        requests = steady.mix.session_requests
        if asked.kind == "rate":
            return steady.at(Load(rate_per_s=amount * requests))
        clients = max(1.0, amount)
        wave = 0.0
        if begins_at_once(workload):
            share = loaded(workload, asked, clients)
            wave = min(1.0, clients / requests_in_all(share, clients, requests))
        return steady.at(Load(clients=clients, at_once=bool(wave), first_wave=wave))

    def largest(self, sized: Sized, nodes: int, most: float = 1e6) -> tuple[float, str]:
        """The largest load that is expected to hold, and the goal or limit that the next one breaks.

        Whole clients, or a rate within 1 %; 0 where none holds, ``most`` where no goal bounds it.
        """
        asked = asked_of(sized.point.scenario.workload)
        return bisect(lambda amount: self._why_not(sized, nodes, amount), asked, most)

    def _why_not(self, sized: Sized, nodes: int, amount: float) -> str:
        found = self.at(sized, nodes, amount)
        if found is None or found.served.overloaded:
            return "overload"
        worst = max(self.goals, key=lambda g: g.used(_value(g, found.served.figures)), default=None)
        if worst is None or worst.holds(_value(worst, found.served.figures)):
            return ""
        return f"{worst.text} ({found.served.limit})"


OVERLOAD = Goal("overload", 0.0, "served as fast as requests come")


def _value(goal: Goal, figures: dict[str, float]) -> float | None:
    # The share of good requests is a matter of simulation.
    return None if goal.metric == GOODPUT else figures.get(goal.metric)


def bisect(why_not: Callable[[float], str], asked: Asked, most: float) -> tuple[float, str]:
    """The largest load for which ``why_not`` is empty, and what it says of the next."""
    whole = asked.kind == "clients"
    low, high, reason = 0.0, asked.amount, ""
    while high <= most:
        reason = why_not(high)
        if reason:
            break
        low, high = high, 2 * high
    else:
        return low, ""
    while high - low > (1 if whole else 0.01 * high):
        middle = float((low + high) // 2) if whole else (low + high) / 2
        said = why_not(middle)
        low, high, reason = (low, middle, said) if said else (middle, high, reason)
    return low, reason
