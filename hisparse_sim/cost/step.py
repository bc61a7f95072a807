"""Seconds of one engine step: every part priced from its term, in one place."""

from __future__ import annotations

from typing import NamedTuple

from hisparse_sim.cost.dense_attention import DenseAttention
from hisparse_sim.cost.experts import Exchange, Experts
from hisparse_sim.cost.hardware import same_gpu
from hisparse_sim.cost.machine import Machine
from hisparse_sim.cost.profile import Profile
from hisparse_sim.cost.sparse_attention import SparseAttention
from hisparse_sim.cost.tiers import NOTHING, Tiers
from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.memory.layout import kv_layout, require_hisparse, tensor_parallel
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec


class CostRow(NamedTuple):
    """A part of a step: its seconds, where they come from, and whether that was extrapolated."""

    part: str
    seconds: float
    source: str
    grade: str
    in_domain: bool


class StepCostModel:
    """Prices steps of one model on one node under one engine setting.

    ``profile`` may be of another GPU than the node's (:attr:`warnings` then says so): fitted terms
    are used as they are, rooflines take the node's datasheet rates. ``miss_rate`` overrides the
    locality model's share of looked-up rows that miss. Raises ``InputError`` for an engine setting
    that vLLM refuses and for terms that the profile lacks.

    A mixed step runs its experts once on all its tokens, and so the projections of dense attention.
    Costs never fall when tokens, context, lookups or mirrored tokens are added.
    """

    def __init__(
        self,
        model: ModelSpec,
        node: NodeSpec,
        engine: EngineSpec,
        profile: Profile,
        *,
        miss_rate: float | None = None,
    ) -> None:
        self.model, self.node, self.engine, self.profile = model, node, engine, profile
        self.tp = tp = tensor_parallel(node, engine)
        layout = kv_layout(model, engine, node)
        machine = Machine(node, profile, model.weights.dtype)
        self.attention: SparseAttention | DenseAttention
        if model.attention == "dsa":
            kv = "bf16" if layout.row_format == "bf16" else "fp8"
            self.attention = SparseAttention(model, profile, tp=tp, kv=kv)
        else:
            self.attention = DenseAttention(model, machine, tp=tp, row_bytes=layout.row_bytes)
        self.experts = Experts(model, node, engine, profile, tp)
        self.exchange = Exchange(model, engine, profile, tp)
        self._machine = machine
        moe_layers = model.moe_layers
        dense_layers = model.num_layers - moe_layers
        width = 3.0 * model.hidden_size / tp
        self._shared_weights = width * model.shared_experts * model.moe_intermediate_size
        self._dense_weights = width * model.intermediate_size
        self._moe_layers, self._dense_layers = moe_layers, dense_layers
        # The head stays in 16 bits in all quantised checkpoints of the catalogue.
        head = float(model.vocab_size) * model.hidden_size / tp
        self._head_read_s = 2.0 * head * machine.byte_s
        self._head_row_s = 2.0 * head * machine.bf16_flop_s
        self._overhead_s = model.num_layers * profile.term("overhead.layer").value()
        self._layers = model.num_layers
        self._follower_s = getattr(self.attention, "follower_decode_s", 0.0)
        self._tiers: Tiers | None = None
        if engine.mode == "hisparse":
            self._tiers = Tiers(
                node,
                profile,
                layers=layout.num_layers,
                leaders=layout.num_indexers,
                row_bytes=layout.row_bytes,
                hot_rows=require_hisparse(layout, model).hot_rows,
                topk_rows=model.index_topk,
                ranks=tp * engine.dp,
                miss_rate=miss_rate,
            )
        self.warnings = tuple(_warnings(profile, node, engine))

    @property
    def miss_rate(self) -> float:
        """Share of looked-up rows taken to miss the hot buffer; 0 outside HiSparse."""
        return self._tiers.miss_rate if self._tiers else 0.0

    def miss_rate_range(self) -> tuple[float, float]:
        """Low and high miss rate for a range beside the point; zeros outside HiSparse."""
        if self._tiers is None:
            return 0.0, 0.0
        layout = kv_layout(self.model, self.engine, self.node)
        return self._tiers.locality.miss_rate_range(require_hisparse(layout, self.model).hot_rows)

    def step(self, work: StepWork) -> StepCost:
        """Seconds by part, and traffic, of one step. An empty step costs nothing."""
        tokens = batch = work.decode_requests
        prefills = work.prefills
        for new, _ in prefills:
            tokens += new
        if not tokens:
            return StepCost()
        matrices = self._machine.matrices_s
        attention = self.attention.step_s(batch, work.decode_context_tokens, prefills)
        moe = self.experts.step_s(tokens)
        if self._shared_weights:
            moe += self._moe_layers * matrices(self._shared_weights, tokens)
        dense = self._dense_layers * matrices(self._dense_weights, tokens) if self._dense_layers else 0.0
        allreduce = self.exchange.step_s(tokens)
        head = max(self._head_read_s, self._head_row_s * work.sampled) if work.sampled else 0.0
        tier = NOTHING
        if self._tiers is not None:
            compute = attention + moe + dense + allreduce + head + self._overhead_s
            follower = self._follower_s + (moe + allreduce) / self._layers
            tier = self._tiers.step(work, compute, follower)
        return StepCost(
            attention,
            moe,
            dense,
            allreduce,
            head,
            self._overhead_s,
            tier.resolve_s,
            tier.gather_s,
            tier.staging_s,
            tier.mirror_s,
            tier.h2d_bytes,
            tier.d2h_bytes,
            tier.misses_rows,
            tier.lookups_rows,
        )

    def decode_work(self, batch: int, context_tokens: float, resident_share: float = 1.0) -> StepWork:
        """A step of ``batch`` decodes alike, ``resident_share`` of each one's rows in resident pages."""
        hisparse = self._tiers is not None
        rows = min(float(self.model.index_topk), context_tokens) * (1.0 - resident_share) if hisparse else 0.0
        return StepWork(
            decode_requests=batch,
            decode_context_tokens=round(batch * context_tokens),
            sampled=batch,
            lookup_rows=batch * rows,
            lookup_rows_max=rows,
            mirrored_tokens=batch if hisparse else 0,
        )

    def decode_tpot_s(self, batch: int, context_tokens: float, resident_share: float = 1.0) -> float:
        """Seconds a token of ``batch`` requests of ``context_tokens`` each that only decode."""
        return self.step(self.decode_work(batch, context_tokens, resident_share)).total_s

    def describe(self, work: StepWork) -> list[CostRow]:
        """The parts of one step with source, grade and whether each lies inside its fitted domain."""
        cost, profile = self.step(work), self.profile
        tokens = work.tokens
        overhead, locality = profile.term("overhead.layer"), profile.term("locality.lru_miss_rate")
        inside = self.attention.in_domain(work.decode_requests, work.decode_context_tokens, work.prefills)
        fitted = self.attention.source == "aic"
        rows = [
            CostRow(
                "attention",
                cost.attention_s,
                self.attention.source,
                "measured" if fitted else "derived",
                inside,
            ),
            CostRow(
                "moe",
                cost.moe_s,
                "aic",
                "measured" if self.experts.exact else "derived",
                self.experts.in_domain(tokens),
            ),
            CostRow("dense", cost.dense_s, "roofline", "derived", True),
            CostRow("allreduce", cost.allreduce_s, "aic", "measured", self.exchange.in_domain(tokens)),
            CostRow("head", cost.head_s, "roofline", "derived", True),
            CostRow("overhead", cost.overhead_s, overhead.source, overhead.grade, True),
        ]
        if self._tiers is not None:
            resolve = profile.term("hisparse.resolve")
            link = f"node {self.node.name}: host_link"
            rows += [
                CostRow("resolve", cost.resolve_s, resolve.source, resolve.grade, True),
                CostRow(
                    "gather",
                    cost.gather_s,
                    f"{locality.source}; {link}",
                    locality.grade,
                    self._tiers.in_domain,
                ),
                CostRow("staging", cost.staging_s, link, "derived", True),
                CostRow("mirror", cost.mirror_s, link, "derived", True),
            ]
        return rows


def _warnings(profile: Profile, node: NodeSpec, engine: EngineSpec) -> list[str]:
    found = []
    if not same_gpu(profile.hardware.gpu, node.gpu.name):
        found.append(
            f"profile {profile.id} was measured on {profile.hardware.gpu}, the node has {node.gpu.name}"
        )
    if engine.mtp:
        found.append("engine.mtp: drafting and verifying are not priced; a step costs what it does without")
    return found
