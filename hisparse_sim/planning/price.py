"""What a deployment costs: prices are the scenario's, there are none here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.plan import PlanSpec

PER_TOKENS = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """``unit``: of an hour's price (``USD/h``, or ``GPUs`` where no prices are given)."""

    plan: PlanSpec
    known: bool

    @property
    def unit(self) -> str:
        """Of what a deployment costs an hour."""
        return f"{self.plan.currency}/h" if self.known else "GPUs"

    @property
    def token_unit(self) -> str:
        """Of the objective ``cost``."""
        what = self.plan.currency if self.known else "GPU-hours"
        return f"{what} per million output tokens"

    def hourly(self, node: NodeSpec, nodes: int) -> float:
        """Of ``nodes`` machines, energy included where the plan has it; GPUs without prices."""
        if not self.known:
            return float(nodes * node.gpus)
        total = self.plan.prices[node.name]
        energy = self.plan.energy
        if energy is not None:
            total += energy.node_w[node.name] / 1e3 * energy.price_per_kwh
        return nodes * total

    def per_million(self, hourly: float, output_tokens_per_s: float) -> float:
        """``hourly`` over what is served in an hour."""
        if output_tokens_per_s <= 0:
            return float("inf")
        return hourly / (output_tokens_per_s * 3600) * PER_TOKENS


def prices_of(plan: PlanSpec, nodes: Iterable[NodeSpec]) -> Prices:
    """Raises ``InputError`` when some nodes have a price, or a draw of power, and others have not."""
    names = sorted({node.name for node in nodes})
    tables = {"plan.prices": dict(plan.prices)}
    if plan.energy is not None:
        if not plan.prices:
            raise InputError("energy comes on top of prices, and none are given", where="plan.energy")
        tables["plan.energy.node_w"] = dict(plan.energy.node_w)
    for where, table in tables.items():
        missing = [name for name in names if name not in table]
        if table and missing:
            raise InputError(
                f"has no {', '.join(missing)}; give all node types of the choices, or none", where=where
            )
    return Prices(plan, bool(plan.prices))
