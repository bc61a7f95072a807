"""How fast a full batch decodes, and what its misses ask of PCIe and host memory.

The seconds are the cost room's, so the estimate and the simulation cannot disagree about a step. Only
nodes with a calibration profile answer; the others know capacity alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hisparse_sim.errors import InputError
from hisparse_sim.estimate.concurrency import ModePools
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

if TYPE_CHECKING:
    from hisparse_sim.cost.domain import Limit
    from hisparse_sim.cost.step import StepCostModel
    from hisparse_sim.cost.work import StepCost, StepWork

LINK_SPREAD = 0.15
"""How far the gather rate may be off: 32 to 35 GB/s were measured for rows read by SMs over PCIe 5
(sglang PR #22187, nvbandwidth issue #24), kernels and topologies differ."""


LINK_STEP = 0.10
"""The link's unit in "what would one unit more give": a tenth more gather rate."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Pure decode of one full batch.

    ``miss_share``: expected, of the selected rows that lie in no resident page.
    ``tpot_s``: seconds a step, one token a request; ``tokens_per_s`` over all DP replicas.
    ``wider_link_tpot_s``: the same with a link a tenth faster.
    ``link_share`` and ``dram_share``: used part of one GPU's gather rate and of one node's DRAM rate.
    """

    tpot_s: float
    tpot_range_s: tuple[float, float]
    wider_link_tpot_s: float
    tokens_per_s: float
    resident_share: float
    miss_share: float
    h2d_bytes_per_s: float
    link_share: float
    dram_bytes_per_s: float
    dram_share: float
    uncertainty_s: float
    """Of ``tpot_s``, one standard deviation: errors of the fits and ranges of what nobody measured."""
    beyond: tuple[Limit, ...]
    """Variables of the step that lie outside what was measured."""


class DecodeModel:
    """Prices decode steps of one mode; ``pricer`` gives none for a node without a profile."""

    def __init__(self, model: ModelSpec, node: NodeSpec, pools: ModePools, costs: _Costs) -> None:
        self.model, self.node, self.pools, self.costs = model, node, pools, costs

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the prices rest on that was not measured."""
        return self.costs.nominal.warnings

    def nominal_s(self, requests: int, tokens: int, output_tokens: int = 1024) -> float:
        """Seconds a decode step of ``requests`` of ``tokens`` alone, without the ranges around it."""
        return self.costs.nominal.step(self._work(requests, tokens, output_tokens)).total_s

    def at(self, requests: int, tokens: int, output_tokens: int = 1024) -> Decode | None:
        """Decode of ``requests`` of ``tokens`` in all on each replica; none for no request.

        The first of ``output_tokens`` find an empty hot buffer.
        """
        if not requests:
            return None
        share = self.pools.resident_share(tokens, requests)
        work = self._work(requests, tokens, output_tokens)
        nominal = self.costs.nominal.step(work)
        low = high = wider = nominal
        missed, misses = 0.0, self.costs.nominal.misses
        if misses is not None and nominal.lookups_rows:
            missed = nominal.misses_rows / nominal.lookups_rows
            steady = misses.share(tokens, resident_share=share)
            least, most = misses.share_range(tokens, resident_share=share)
            low = self._step(self.costs.fast, requests, tokens, share, missed + least - steady)
            high = self._step(self.costs.slow, requests, tokens, share, min(1.0, missed + most - steady))
            wider = self._step(self.costs.wider, requests, tokens, share, missed)
        seconds, each = nominal.total_s, self.pools.engine.tokens_a_step
        asked = self.costs.nominal.query(work)
        beyond = dict.fromkeys(limit for part in asked.parts for limit in part.beyond)
        engine = self.pools.engine
        tp = engine.tp or self.node.gpus
        # Each rank reads its own copy over its own link; replicas of one node share its DRAM.
        ranks = min(self.node.gpus, tp * engine.dp)
        h2d = nominal.h2d_bytes / seconds
        return Decode(
            tpot_s=seconds / each,
            tpot_range_s=(min(low.total_s, seconds) / each, max(high.total_s, seconds) / each),
            wider_link_tpot_s=wider.total_s / each,
            tokens_per_s=requests * engine.dp * each / seconds,
            resident_share=share,
            miss_share=missed,
            h2d_bytes_per_s=h2d,
            link_share=h2d / self.node.host_link.gather_bytes_per_s,
            dram_bytes_per_s=h2d * ranks,
            dram_share=h2d * ranks / self.node.dram_bytes_per_s,
            uncertainty_s=asked.uncertainty_s / each,
            beyond=tuple(sorted(beyond, key=lambda limit: -limit.beyond)),
        )

    def _work(self, requests: int, tokens: int, output_tokens: int) -> StepWork:
        """The mean step of requests that decode ``output_tokens`` each."""
        share = self.pools.resident_share(tokens, requests)
        missed, misses = 0.0, self.costs.nominal.misses
        if misses is not None:
            missed = misses.mean_share(tokens, max(1, output_tokens), resident_share=share)
        return self.costs.nominal.decode_work(requests, tokens, share, miss_share=missed)

    def _step(self, cost: StepCostModel, requests: int, tokens: int, share: float, misses: float) -> StepCost:
        return cost.step(cost.decode_work(requests, tokens, share, miss_share=misses))


class _Costs:
    """Cost models of the link as it is and of other ones, made when first asked for."""

    def __init__(self, at: Callable[[float], StepCostModel]) -> None:
        self._at = at

    @cached_property
    def nominal(self) -> StepCostModel:
        return self._at(1.0)

    @cached_property
    def fast(self) -> StepCostModel:
        return self._at(1 + LINK_SPREAD)

    @cached_property
    def slow(self) -> StepCostModel:
        return self._at(1 - LINK_SPREAD)

    @cached_property
    def wider(self) -> StepCostModel:
        return self._at(1 + LINK_STEP)


def decode_model(
    model: ModelSpec,
    node: NodeSpec,
    pools: ModePools,
    *,
    calibration: str | None = None,
    locality: str | float | None = None,
) -> tuple[DecodeModel | None, str]:
    """A pricer for ``pools``' mode, or none and the reason (no profile for this node)."""
    from hisparse_sim.cost.profile import profile_for
    from hisparse_sim.cost.step import StepCostModel

    try:
        profile = profile_for(node, calibration)
    except InputError as error:
        if node.calibration or calibration:
            raise
        return None, error.message

    def cost(link: float) -> StepCostModel:
        rates = node.host_link
        slower = rates.model_copy(
            update={
                "gather_bytes_per_s": rates.gather_bytes_per_s * link,
                "gather_per_request_bytes_per_s": rates.gather_per_request_bytes_per_s * link,
            }
        )
        slowed = node.model_copy(update={"host_link": slower})
        return StepCostModel(model, slowed, pools.engine, profile, locality=locality)

    return DecodeModel(model, node, pools, _Costs(cost)), ""
