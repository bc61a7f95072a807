"""How much is asked of a deployment, and the same workload with more or less of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.arrivals import DailySpec, PiecewiseSpec
from hisparse_sim.scenario.workload import PoissonSpec, StreamSpec, TraceSpec, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Asked:
    """``clients`` of a closed loop, or sessions (single requests) ``rate_per_s`` of an open one."""

    kind: Literal["clients", "rate"]
    amount: float

    def shown(self, amount: float | None = None) -> str:
        """For people."""
        value = self.amount if amount is None else amount
        return f"{value:,.0f} clients" if self.kind == "clients" else f"{value:.3g} arrivals/s"


def asked_of(workload: WorkloadSpec) -> Asked:
    """Raises ``InputError`` for a trace without a cap on live sessions, whose load is its recording."""
    if isinstance(workload, TraceSpec):
        if workload.concurrency is None:
            raise InputError(
                "a recorded trace has no load to divide or raise; give workload.concurrency, a cap on live "
                "sessions, or describe the workload as conversations or open arrivals",
                where="workload",
            )
        return Asked("clients", workload.concurrency)
    if isinstance(workload, PoissonSpec):
        return Asked("rate", workload.rate_per_s)
    arrivals = getattr(workload, "arrivals", None)
    if arrivals is None:
        return Asked("clients", getattr(workload, "concurrency", None) or 1)
    if isinstance(arrivals, PiecewiseSpec):
        return Asked("rate", max(step.rate_per_s for step in arrivals.steps))
    if isinstance(arrivals, DailySpec):
        return Asked("rate", arrivals.mean_rate_per_s * (1 + arrivals.swing))
    return Asked("rate", arrivals.rate_per_s)


def loaded(workload: WorkloadSpec, asked: Asked, amount: float) -> WorkloadSpec:
    """``workload`` with ``amount`` instead of what is ``asked``; counts that it names scale with it."""
    factor = amount / asked.amount
    if factor == 1:
        return workload
    change: dict[str, Any] = {}
    for name in ("conversations", "sessions", "requests", "limit"):
        count = getattr(workload, name, None)
        if count is not None and not isinstance(workload, TraceSpec):
            change[name] = max(1, math.ceil(count * factor))
    if asked.kind == "clients":
        change["concurrency"] = math.ceil(amount)
    elif isinstance(workload, PoissonSpec):
        change["rate_per_s"] = amount
    else:
        arrivals = workload.arrivals  # type: ignore[union-attr]
        change["arrivals"] = _faster(arrivals, factor)
        cap = getattr(workload, "concurrency", None)
        if cap is not None:
            change["concurrency"] = max(1, math.ceil(cap * factor))
    return workload.model_copy(update=change)


def _faster(arrivals: Any, factor: float) -> Any:
    if isinstance(arrivals, PiecewiseSpec):
        steps = tuple(s.model_copy(update={"rate_per_s": s.rate_per_s * factor}) for s in arrivals.steps)
        return arrivals.model_copy(update={"steps": steps})
    name = "mean_rate_per_s" if isinstance(arrivals, DailySpec) else "rate_per_s"
    return arrivals.model_copy(update={name: getattr(arrivals, name) * factor})


def begins_at_once(workload: WorkloadSpec) -> bool:
    """Whether all clients send their first request at time 0."""
    return (
        not isinstance(workload, TraceSpec)
        and getattr(workload, "arrivals", None) is None
        and not isinstance(workload, PoissonSpec)
        and getattr(workload, "ramp_up_s", 0.0) == 0.0
    )


def requests_in_all(workload: WorkloadSpec, clients: float, session_requests: float) -> float:
    """Expected, of a closed loop."""
    if isinstance(workload, StreamSpec):
        return float(workload.requests)
    sessions = getattr(workload, "conversations", None) or getattr(workload, "sessions", None)
    return (sessions or max(4, 2 * clients)) * session_requests
