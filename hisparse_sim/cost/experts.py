"""Mixture-of-experts layers and their exchange between GPUs."""

from __future__ import annotations

from hisparse_sim.cost.forms import PiecewiseLinear
from hisparse_sim.cost.machine import Machine
from hisparse_sim.cost.profile import Profile, Term
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

TABLE_SHAPE = (256, 8, 2048, "fp8")
"""Experts, top-k, inner size and weight format of the measured layers (hidden 6,144 and 7,168)."""


def piecewise(term: Term) -> PiecewiseLinear:
    """The broken line that a term describes."""
    return PiecewiseLinear(term.series("x"), term.series("y"), term.value("tail_slope"))


class Experts:
    """Seconds of the routed experts of all layers on the busiest GPU, on all tokens of a step.

    Under expert parallelism (DP x TP ranks share the experts out) from the table of that many ranks,
    else from the table of experts sharded over as many; other shapes by the roofline fitted to the
    same rows. Experts are chosen by the skewed distribution ``power_law_1.2``. Above the table the
    last slope goes on. With DP every replica is taken to bring as many tokens as this one.
    """

    def __init__(
        self, model: ModelSpec, node: NodeSpec, engine: EngineSpec, profile: Profile, tp: int
    ) -> None:
        self.layers = model.moe_layers
        self.ranks = tp * engine.dp
        self._replicas = engine.dp
        self._limit = float("inf")
        self._line: PiecewiseLinear | None = None
        self.source, self.exact = "aic", True
        if not self.layers:
            return
        shape = (model.num_experts, model.experts_per_token, model.moe_intermediate_size, model.weights.dtype)
        how = "ep" if engine.ep else "tp"
        term = profile.find(f"moe.hidden{model.hidden_size}.{how if self.ranks > 1 else 'ep'}{self.ranks}")
        if shape == TABLE_SHAPE and term is not None:
            self._line = piecewise(term)
            self._limit = term.domain["tokens"][1]
            return
        self.exact = False
        law = profile.term("moe.roofline")
        machine = Machine(node, profile, model.weights.dtype)
        sharded = 1 if engine.ep else self.ranks
        local = model.num_experts * sharded / self.ranks
        weights = 3.0 * model.hidden_size * model.moe_intermediate_size / sharded
        read_s = weights * machine.weight_bytes / (node.gpu.hbm_bytes_per_s * law.value("hbm_share"))
        flops = node.gpu.fp8_flops if model.weights.dtype == "fp8" else node.gpu.bf16_flops
        self._base_s = law.value("base_s")
        self._all_read_s = local * read_s
        self._untouched = 1.0 - model.experts_per_token / model.num_experts
        share = model.experts_per_token * sharded / self.ranks
        self._token_s = 2.0 * weights * share / (flops * law.value("flops_share"))

    def step_s(self, tokens: int) -> float:
        """All layers for ``tokens`` of this replica."""
        if not self.layers or not tokens:
            return 0.0
        tokens *= self._replicas
        if self._line is not None:
            return self.layers * self._line(tokens)
        hit = 1.0 - self._untouched**tokens
        return self.layers * (self._base_s + hit * self._all_read_s + tokens * self._token_s)

    def in_domain(self, tokens: int) -> bool:
        """Whether the step lies inside the table."""
        return self.exact and tokens * self._replicas <= self._limit


class Exchange:
    """All-reduces of tensor parallelism, and dispatch and combine of experts over DP replicas.

    Two all-reduces a layer of ``tokens x hidden`` 16-bit values; with DP replicas the experts are
    shared by all of them, and the second one gives way to DeepEP's dispatch and combine (low-latency
    or normal kernels, whichever is shorter), tokens spread over the TP ranks. Without expert
    parallelism vLLM gathers and scatters instead; DeepEP's times stand in for it.
    """

    def __init__(self, model: ModelSpec, engine: EngineSpec, profile: Profile, tp: int) -> None:
        self._token_bytes = 2.0 * model.hidden_size
        self._tp = tp
        spread = engine.dp > 1 and model.moe_layers > 0
        self._reduces = (2 * model.num_layers - (model.moe_layers if spread else 0)) if tp > 1 else 0
        self._reduce: PiecewiseLinear | None = None
        self._limit, self.exact = float("inf"), True
        if tp > 1:
            term, self.exact = profile.nearest("allreduce.gpus", "", tp)
            self._reduce, self._limit = piecewise(term), term.domain["bytes"][1]
        self._spread_layers = model.moe_layers if spread else 0
        if spread:
            laws = []
            for kind in ("low_latency", "normal"):
                term, same = profile.nearest(f"deepep.{kind}.hidden", "", model.hidden_size)
                laws.append((term.value("base_s"), term.value("per_unit_s")))
                self.exact &= same and engine.ep and tp * engine.dp == 8
            self._low, self._normal = laws

    def step_s(self, tokens: int) -> float:
        """All layers for ``tokens`` of this replica."""
        cost = 0.0
        if self._reduce is not None and tokens:
            cost = self._reduces * self._reduce(tokens * self._token_bytes)
        if self._spread_layers and tokens:
            each = tokens / self._tp
            low, normal = self._low, self._normal
            cost += self._spread_layers * min(low[0] + low[1] * each, normal[0] + normal[1] * each)
        return cost

    def in_domain(self, tokens: int) -> bool:
        """Whether the step lies inside the tables."""
        return self.exact and tokens * self._token_bytes <= self._limit
