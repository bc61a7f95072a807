"""Mixture-of-experts layers and their exchange between GPUs."""

from __future__ import annotations

from hisparse_sim.cost.domain import Domain
from hisparse_sim.cost.forms import LogLog, PiecewiseLinear
from hisparse_sim.cost.machine import Machine
from hisparse_sim.cost.profile import Profile, Term
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

SKEW = "power_law_1.2"
"""How the experts of the measured rows were chosen: the most skewed of three distributions."""


def piecewise(term: Term) -> PiecewiseLinear:
    """The broken line that a term describes."""
    return PiecewiseLinear(term.series("x"), term.series("y"), term.value("tail_slope"))


class Experts:
    """Seconds of the routed experts of all layers on the busiest GPU, on all tokens of a step.

    Under expert parallelism (DP x TP ranks share the experts out) from the line of that many ranks,
    else from the line of experts sharded over as many; other shapes by the shares fitted to the same
    rows. Experts are chosen by the skewed distribution ``SKEW``. Above the table the last slope of the
    line goes on. All DP replicas bring their tokens to them.
    """

    def __init__(
        self, model: ModelSpec, node: NodeSpec, engine: EngineSpec, profile: Profile, tp: int
    ) -> None:
        self.layers = model.moe_layers
        self.ranks = tp * engine.dp
        self.domain = Domain()
        self._line: LogLog | None = None
        self.term: Term | None = None
        self.stands_in: list[str] = []
        if not self.layers:
            return
        ranks = self.ranks
        shape = f"{model.hidden_size}x{model.moe_intermediate_size}"
        shape += f".e{model.num_experts}k{model.experts_per_token}"
        how = f"tp1.ep{ranks}" if engine.ep else f"tp{ranks}.ep1"
        term = profile.find(f"moe.{shape}.{how}.{SKEW}") if model.weights.dtype == "fp8" else None
        if term is not None:
            self.term = term
            self._line = LogLog(term.series("x"), term.series("y"))
            most = term.domain["tokens"][1]
            self.domain = Domain(group=most) if engine.dp > 1 else Domain(tokens=most)
            return
        law = self.term = profile.term("moe.roofline")
        self.stands_in.append(f"experts {shape}, {how}, {model.weights.dtype}: by shares of datasheet rates")
        machine = Machine(node, profile, model.weights.dtype)
        sharded = 1 if engine.ep else ranks
        local = model.num_experts * sharded / ranks
        weights = 3.0 * model.hidden_size * model.moe_intermediate_size / sharded
        read_s = weights * machine.weight_bytes / (node.gpu.hbm_bytes_per_s * law.value("hbm_share"))
        flops = node.gpu.fp8_flops if model.weights.dtype == "fp8" else node.gpu.bf16_flops
        self._base_s = law.value("base_s")
        self._all_read_s = local * read_s
        self._untouched = 1.0 - model.experts_per_token / model.num_experts
        share = model.experts_per_token * sharded / ranks
        self._token_s = 2.0 * weights * share / (flops * law.value("flops_share"))

    def step_s(self, tokens: int) -> float:
        """All layers for ``tokens`` of all replicas together."""
        if not self.layers or not tokens:
            return 0.0
        if self._line is not None:
            return self.layers * self._line(tokens)
        hit = 1.0 - self._untouched**tokens
        return self.layers * (self._base_s + hit * self._all_read_s + tokens * self._token_s)


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
        self.domain = Domain()
        self.terms: list[Term] = []
        self.stands_in: list[str] = []
        if tp > 1:
            term, same = profile.nearest("allreduce.gpus", [""], tp)
            self._reduce = piecewise(term)
            self.domain = Domain(tokens=term.domain["bytes"][1] / self._token_bytes)
            self.terms.append(term)
            if not same:
                self.stands_in.append(f"an all-reduce of {tp} GPUs, priced as {term.id}")
        self._spread_layers = model.moe_layers if spread else 0
        if spread:
            laws = []
            for kind in ("low_latency", "normal"):
                term, same = profile.nearest(f"deepep.{kind}.hidden", [""], model.hidden_size)
                laws.append((term.value("base_s"), term.value("per_unit_s")))
                self.terms.append(term)
                if not (same and engine.ep and tp * engine.dp == 8):
                    self.stands_in.append(f"an exchange of experts, priced as {term.id} on 8 GPUs")
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
