"""Seconds that a model's MTP layer takes to draft the tokens of the next step.

The layer sees what the step saw, once, and drafts a token for each request; every further draft is one
more pass over one row a request. A pass is the layer with its experts and exchange, and the shared head
(DeepSeek-V3, arXiv 2412.19437; vLLM runs its one MTP layer as often as tokens are drafted).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hisparse_sim.cost.work import StepCost, StepWork
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec


def mtp_layer(model: ModelSpec, engine: EngineSpec) -> tuple[ModelSpec, EngineSpec]:
    """The layer as a model of its own: with experts, and with an indexer where the model has them."""
    alone: dict[str, int | tuple[int, ...]] = {"num_layers": 1, "dense_layers": 0 if model.num_experts else 1}
    if model.indexer_layers:
        alone["indexer_layers"] = (0,)
    # Its rows of the host tier are among those of the model's other layers.
    return model.model_copy(update=alone), engine.model_copy(update={"mtp": 0, "mode": "resident"})


class Drafting:
    """``drafts`` passes of a layer whose steps ``price`` tells."""

    def __init__(self, price: Callable[[StepWork], StepCost], drafts: int) -> None:
        self._price, self._drafts = price, drafts

    def step_s(self, work: StepWork) -> float:
        """After a step of ``work``; nothing if nobody samples."""
        if not work.sampled:
            return 0.0
        requests = work.sampled - work.draft_tokens
        first = self._price(replace(work, sampled=requests)).total_s
        if self._drafts == 1:
            return first
        context = work.decode_context_tokens + sum(new + past for new, past in work.prefills)
        again = StepWork(requests, context, sampled=requests)
        return first + (self._drafts - 1) * self._price(again).total_s
