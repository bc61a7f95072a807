"""What a plan is asked for: goals, choices and prices, the ``plan:`` section of a scenario."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, field_validator

from hisparse_sim.scenario.base import Record

Objective = Literal["cost", "nodes", "goodput"]


class EnergySpec(Record):
    """Electricity on top of the prices, where those leave it out.

    ``node_w``: draw of each node by name, under load, with its share of cooling.
    """

    price_per_kwh: PositiveFloat
    node_w: dict[str, PositiveFloat] = Field(min_length=1)


class PlanSpec(Record):
    """Choices and goals. Nothing here changes a run; there are no default prices."""

    slo: tuple[str, ...] = ()
    """``ttft_p95<=30s``, ``tpot_p99<=100ms``, ``goodput>=95%``."""
    objective: Objective = "cost"
    nodes: int | str | tuple[int, ...] = 1
    """Allowed counts of machines: ``4``, ``[1, 2, 4]`` or ``1..8``."""
    vary: dict[str, Any] = Field(default={})
    """Values of each field that is chosen: ``engine.host_pool_gib: [128, 256]``, ``node: [8xh200, 8xb200]``,
    or text as after ``sweep --vary`` (``1..8``)."""
    prices: dict[str, PositiveFloat] = Field(default={})
    """Price of an hour of each node, by its name."""
    currency: str = "USD"
    energy: EnergySpec | None = None

    @field_validator("nodes", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ValueError(f"{value} is no count of machines; at least 1")
        return value
