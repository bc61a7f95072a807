"""A scenario: one question, validated once, then frozen."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat

from hisparse_sim.scenario.base import Record
from hisparse_sim.scenario.cluster import ClusterSpec
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec
from hisparse_sim.scenario.plan import PlanSpec
from hisparse_sim.scenario.workload import WorkloadSpec


class SloSpec(Record):
    """A request meets its goal when each given bound holds. All are seconds."""

    ttft_s: PositiveFloat | None = None
    tpot_s: PositiveFloat | None = None
    e2e_s: PositiveFloat | None = None


class Scenario(Record):
    """Model, node, engine, workload, goals and seed: all that a run depends on but the profile."""

    name: str
    description: str = ""
    model: ModelSpec
    node: NodeSpec
    engine: EngineSpec = EngineSpec()
    cluster: ClusterSpec = ClusterSpec()
    workload: WorkloadSpec
    slo: SloSpec = SloSpec()
    calibration: str | None = None
    """Profile name or path; none: the node's own."""
    locality: Annotated[float, Field(ge=0, le=1)] | str | None = None
    """How selected rows repeat, under HiSparse: a shipped locality's name, a file that `locality fit` wrote,
    or a fixed share of looked-up rows that miss (0.134); none: the model's own."""
    seed: NonNegativeInt = 0
    plan: PlanSpec | None = None
    """Choices and goals of `hisparse-sim plan`; no run depends on it."""

    @property
    def tp(self) -> int:
        """Tensor parallel size, resolved."""
        return self.engine.tp or self.node.gpus

    @property
    def replicas(self) -> int:
        """Schedulers, each with memory of its own: DP replicas of all instances, without prefilling ones."""
        return self.cluster.instances * self.engine.dp

    @property
    def prefilling(self) -> Scenario | None:
        """The instances that only prefill, as a scenario of their own."""
        prefill = self.cluster.prefill
        if prefill is None:
            return None
        alone = ClusterSpec(instances=prefill.instances, router=self.cluster.router)
        engine = prefill.engine
        if engine.kv_cache_dtype == "auto":
            engine = engine.model_copy(update={"kv_cache_dtype": self.engine.kv_cache_dtype})
        return self.model_copy(update={"engine": engine, "cluster": alone})

    @property
    def gpus(self) -> int:
        """Of all replicas."""
        prefilling = self.prefilling
        return self.replicas * self.tp + (prefilling.gpus if prefilling else 0)
