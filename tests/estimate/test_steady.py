"""The closed form of a served workload: laws that hold at any load, and how near a run it is."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from hisparse_sim.cost.profile import profile_for
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.work import PARTS
from hisparse_sim.estimate.concurrency import mode_pools
from hisparse_sim.estimate.mix import mix_of
from hisparse_sim.estimate.steady import Chunks, Load, Steady
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.run import simulate


@lru_cache(maxsize=8)
def steady(mode: str) -> Steady:
    s = load_scenario("agentic-13turn-8xh200", overrides=[f"engine.mode={mode}"])
    pools = mode_pools(s.model, s.node, s.engine, s.engine.mode)
    cost = StepCostModel(s.model, s.node, pools.engine, profile_for(s.node))
    mix = mix_of(s.workload, s.seed)
    return Steady(pools, cost, mix, Chunks(cost, mix, s.engine.max_num_batched_tokens, 0.5))


@pytest.mark.parametrize("mode", ["hisparse", "offload", "resident"])
def test_littles_law_ties_clients_rate_and_latency(mode: str) -> None:
    for clients in (1, 4, 16, 64, 300):
        served = steady(mode).at(Load(clients=clients))
        inside = served.requests_per_s * (served.figures["e2e_mean"] + steady(mode).mix.think_s)
        assert inside == pytest.approx(clients, rel=0.15)


def test_more_clients_never_decode_faster() -> None:
    tpots = [steady("hisparse").at(Load(clients=n)).figures["tpot_mean"] for n in (1, 2, 4, 8, 16, 32)]
    assert tpots == sorted(tpots)


def test_an_open_loop_beyond_what_is_served_is_overloaded() -> None:
    most = steady("hisparse").at(Load(clients=30)).requests_per_s
    assert not steady("hisparse").at(Load(rate_per_s=most / 2)).overloaded
    found = steady("hisparse").at(Load(rate_per_s=most * 3))
    assert found.overloaded and math.isinf(found.figures["ttft_p95"])


def test_what_chance_adds_is_not_in_the_least() -> None:
    served = steady("hisparse").at(Load(clients=16, at_once=True, first_wave=0.04))
    assert all(served.least[f"ttft_{q}"] <= served.figures[f"ttft_{q}"] for q in ("mean", "p50", "p99"))


def test_slower_parts_make_slower_service_and_are_forgotten_again() -> None:
    model = steady("offload")
    before = model.at(Load(clients=4)).requests_per_s
    try:
        slower = model.drawn(np.full(PARTS, 1.5)).at(Load(clients=4)).requests_per_s
    finally:
        model.drawn(np.ones(PARTS))
    assert slower < before
    assert model.at(Load(clients=4)).requests_per_s == before


def test_throughput_and_time_a_token_are_near_a_run() -> None:
    change: list[str] = ["workload.concurrency=6", "workload.turns=6", "workload.first_prompt_tokens=30000"]
    s = load_scenario("agentic-13turn-8xh200", overrides=change)
    pools = mode_pools(s.model, s.node, s.engine, s.engine.mode)
    cost = StepCostModel(s.model, s.node, pools.engine, profile_for(s.node))
    mix = mix_of(s.workload, s.seed)
    model = Steady(pools, cost, mix, Chunks(cost, mix, s.engine.max_num_batched_tokens, 0.0))
    served = model.at(Load(clients=6, at_once=True, first_wave=6 / 72))
    summary: dict[str, Any] = simulate(s).summary
    assert served.output_tokens_per_s == pytest.approx(summary["output_tokens_per_s"], rel=0.25)
    assert served.figures["tpot_mean"] == pytest.approx(summary["tpot_s"]["mean"], rel=0.25)
