"""Seconds a token of requests that only decode, without a clock: the cost model of a scenario's engine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hisparse_sim.cost.profile import load_profile
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec


def decode_tpot_s(
    model: str,
    node: str,
    batch: int,
    context_tokens: float,
    *,
    weights: str | None = None,
    resident_share: float = 1.0,
    engine: Mapping[str, Any],
) -> float:
    """Of ``batch`` requests with ``context_tokens`` each; ``weights``: a format other than the model's."""
    cost = _cost(model, node, weights, tuple(sorted(engine.items())))
    return cost.decode_tpot_s(batch, context_tokens, resident_share)


@lru_cache(maxsize=64)
def _cost(model: str, node: str, weights: str | None, engine: tuple[tuple[str, Any], ...]) -> StepCostModel:
    spec, of = load_model(model), load_node(node)
    if weights is not None:
        spec = spec.model_copy(update={"weights": spec.weights.model_copy(update={"dtype": weights})})
    assert of.calibration is not None
    return StepCostModel(spec, of, EngineSpec(**dict(engine)), load_profile(of.calibration))
