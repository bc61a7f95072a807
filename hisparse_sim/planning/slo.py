"""Goals of a plan: ``ttft_p95<=30s``, ``tpot_p99<=100ms``, ``goodput>=95%``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.scenario import SloSpec
from hisparse_sim.scenario.validate import nearest

TIMES = ("ttft", "tpot", "itl", "e2e")
POINTS = ("mean", "p50", "p90", "p95", "p99")
METRICS = tuple(f"{time}_{point}" for time in TIMES for point in POINTS)
GOODPUT = "goodput"
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_GOAL = re.compile(r"\s*([A-Za-z0-9_.]+)\s*(<=|>=|<|>|=+)\s*([^\s]*?)\s*")
_VALUE = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-z%]*)", re.I)


@dataclass(frozen=True, slots=True)
class Goal:
    """``bound`` in seconds of a latency, at most; or a share of ``goodput``, at least."""

    metric: str
    bound: float
    text: str

    def holds(self, value: float | None) -> bool:
        """Whether ``value`` meets it; what is undefined (a TPOT of single tokens) does."""
        if value is None or value != value:
            return True
        return value >= self.bound if self.metric == GOODPUT else value <= self.bound

    def used(self, value: float | None) -> float:
        """How much of the bound is taken: above 1 it is broken."""
        if value is None or value != value:
            return 0.0
        if self.metric == GOODPUT:
            return self.bound / value if value > 0 else float("inf")
        return value / self.bound


def parse_goals(texts: Sequence[str], *, where: str = "--slo") -> tuple[Goal, ...]:
    """Raises ``InputError`` naming goal, metric and unit."""
    found: dict[str, Goal] = {}
    for text in texts:
        goal = _parse(text, f"{where} {text}")
        if goal.metric in found:
            raise InputError(
                f"{goal.metric} has a goal already, {found[goal.metric].text}; give one of them",
                where=f"{where} {text}",
            )
        found[goal.metric] = goal
    if GOODPUT in found and not any(per_request(found.values()).values()):
        raise InputError(
            "goodput is the share of requests that meet each goal of TTFT, TPOT and E2E, and none is given; "
            "add one (ttft_p95<=30s)",
            where=f"{where} {found[GOODPUT].text}",
        )
    return tuple(found.values())


def _parse(text: str, where: str) -> Goal:
    match = _GOAL.fullmatch(text)
    if match is None:
        raise InputError("is not metric<=value, as in ttft_p95<=30s or goodput>=95%", where=where)
    metric, sign, given = match[1].lower().replace(".", "_").replace("_s_", "_"), match[2], match[3]
    if metric != GOODPUT and metric not in METRICS:
        near = nearest(metric, [*METRICS, GOODPUT])
        raise InputError(
            f"{match[1]!r} is not known{near}; one of {', '.join(TIMES)} with _{', _'.join(POINTS)}, "
            f"or {GOODPUT}",
            where=where,
        )
    right = ">=" if metric == GOODPUT else "<="
    if sign != right:
        raise InputError(f"{metric} takes {right}, not {sign}", where=where)
    value = _VALUE.fullmatch(given)
    if value is None:
        raise InputError(f"{given!r} is not a number", where=where)
    number, unit = float(value[1]), value[2]
    bound = _share(number, unit, where) if metric == GOODPUT else _seconds(number, unit, metric, where)
    if bound <= 0:
        raise InputError(f"{given} can never hold; give a value above 0", where=where)
    return Goal(metric, bound, f"{metric}{right}{given}")


def _seconds(number: float, unit: str, metric: str, where: str) -> float:
    if not unit:
        raise InputError(f"{number:g} has no unit; write {number:g}s or {number:g}ms", where=where)
    if unit.lower() not in _SECONDS:
        raise InputError(
            f"{unit!r} is no unit of {metric}, a time; one of {', '.join(_SECONDS)}", where=where
        )
    return number * _SECONDS[unit.lower()]


def _share(number: float, unit: str, where: str) -> float:
    if unit not in ("", "%"):
        raise InputError(f"{unit!r} is no unit of goodput, a share; write 95% or 0.95", where=where)
    share = number / 100 if unit else number
    if share > 1:
        raise InputError(f"{number:g}{unit} is more than all requests; write 95% or 0.95", where=where)
    return share


def per_request(goals: Iterable[Goal]) -> dict[str, float | None]:
    """Of a request alone, the tightest bound of each time: fields of ``SloSpec``."""
    found: dict[str, float | None] = dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"))
    for goal in goals:
        name = f"{goal.metric.split('_')[0]}_s"
        if name in found:
            known = found[name]
            found[name] = goal.bound if known is None else min(known, goal.bound)
    return found


def slo_of(goals: Iterable[Goal], given: SloSpec) -> SloSpec:
    """What makes a request good: the scenario's own bounds, and where it has none those of the goals."""
    own = {name: value for name, value in given.model_dump().items() if value is not None}
    return SloSpec(**{**per_request(goals), **own})


def of_summary(summary: Mapping[str, object]) -> dict[str, float | None]:
    """The metrics of a run: latencies in seconds, and the share of requests that were good."""
    found: dict[str, float | None] = {}
    for time in TIMES:
        spread = summary.get(f"{time}_s")
        if isinstance(spread, Mapping):
            found |= {f"{time}_{point}": spread.get(point) for point in POINTS}
    return found
