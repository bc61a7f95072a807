"""Seconds of one engine step (provisional: rough constants, to be replaced by the fitted profile)."""

from __future__ import annotations

from typing import Any

from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec


class StepCostModel:
    """Prices steps of one model on one node under one engine setting."""

    def __init__(self, model: ModelSpec, node: NodeSpec, engine: EngineSpec, profile: Any) -> None:
        self.model, self.node, self.engine, self.profile = model, node, engine, profile
        self.layers = model.num_layers
        self.leaders = model.num_indexers or model.num_layers
        self.row_bytes = 656

    def step(self, work: StepWork) -> StepCost:
        """Cost of one step."""
        tokens = work.tokens
        if not tokens:
            return StepCost()
        attention = 0.0
        if work.decode_requests:
            n = work.decode_requests
            attention += self.leaders * (87e-6 + 1.2e-6 * n + 37.5e-12 * work.decode_context_tokens)
            attention += (self.layers - self.leaders) * (52e-6 + 1.0e-6 * n)
        for new, past in work.prefills:
            attention += self.layers * max(0.7e-3, 0.8e-6 * new) + self.leaders * 13e-12 * new * past
        moe = self.layers * (60e-6 + 0.3e-6 * tokens)
        allreduce = 2 * self.layers * (5e-6 + tokens * 12288 / 257e9)
        misses = 0.134 * work.lookup_rows * self.layers
        h2d = misses * 768 + work.staged_tokens * self.layers * self.row_bytes
        return StepCost(
            attention_s=attention,
            moe_s=moe,
            allreduce_s=allreduce,
            overhead_s=0.85e-3,
            gather_s=misses * 768 / 35e9,
            staging_s=work.staged_tokens * self.layers * self.row_bytes / 35e9,
            h2d_bytes=h2d,
            d2h_bytes=float(work.mirrored_tokens * self.layers * self.row_bytes),
            misses_rows=misses,
            lookups_rows=work.lookup_rows * self.layers,
        )

    def decode_tpot_s(self, batch: int, context_tokens_each: float, resident_share: float = 1.0) -> float:
        """Seconds of a pure-decode step of ``batch`` requests of ``context_tokens_each`` tokens."""
        per_request = min(float(self.model.index_topk), context_tokens_each) * (1.0 - resident_share)
        return self.step(
            StepWork(
                decode_requests=batch,
                decode_context_tokens=round(batch * context_tokens_each),
                sampled=batch,
                lookup_rows=batch * per_request,
                lookup_rows_max=per_request,
                mirrored_tokens=batch if self.engine.mode == "hisparse" else 0,
            )
        ).total_s
