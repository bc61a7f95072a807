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
from hisparse_sim.estimate.mix import _mix, mix_of
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


def expected(change: list[str]) -> tuple[Any, dict[str, Any]]:
    """What a short run of one load is expected to be, and what it is."""
    s = load_scenario("agentic-13turn-8xh200", overrides=change)
    pools = mode_pools(s.model, s.node, s.engine, s.engine.mode)
    cost = StepCostModel(s.model, s.node, pools.engine, profile_for(s.node))
    mix = mix_of(s.workload, s.seed)
    clients: int = s.workload.concurrency  # type: ignore[union-attr, assignment]
    requests = s.workload.conversations * mix.session_requests  # type: ignore[union-attr, operator]
    model = Steady(pools, cost, mix, Chunks(cost, mix, s.engine.max_num_batched_tokens, 0.0))
    return model.at(Load(clients=clients, at_once=True, first_wave=clients / requests)), simulate(s).summary


def test_one_client_meets_nobody_elses_prefill() -> None:
    served, summary = expected(["workload.concurrency=1", "workload.turns=4", "workload.conversations=2"])
    assert served.figures["tpot_p99"] == served.figures["tpot_p50"] == served.figures["itl_p99"]
    assert served.figures["tpot_mean"] == pytest.approx(summary["tpot_s"]["mean"], rel=0.01)
    assert served.figures["e2e_mean"] == pytest.approx(summary["e2e_s"]["mean"], rel=0.02)
    assert served.output_tokens_per_s == pytest.approx(summary["output_tokens_per_s"], rel=0.02)


@pytest.mark.parametrize("clients", [2, 4, 12])
def test_first_prompts_that_came_at_once_are_not_met_again(clients: int) -> None:
    served, summary = expected(
        [f"workload.concurrency={clients}", "workload.turns=4", f"workload.conversations={clients}"]
    )
    for name in ("tpot", "itl", "e2e", "ttft"):
        assert served.figures[f"{name}_mean"] == pytest.approx(summary[f"{name}_s"]["mean"], rel=0.15)
    assert served.output_tokens_per_s == pytest.approx(summary["output_tokens_per_s"], rel=0.05)


def test_what_sessions_share_is_counted_over_the_whole_run() -> None:
    def computed(change: list[str]) -> float:
        s = load_scenario("documents-1m-8xh200", overrides=change)
        return sum(c.share * (c.prompt_tokens - c.hit_tokens) for c in mix_of(s.workload, s.seed).classes)

    # 40 documents, each computed once: three times the visits, and a third of it a question.
    assert computed(["workload.sessions=600"]) < 0.5 * computed(["workload.sessions=150"])


def test_a_mix_hangs_on_no_load_that_was_asked_before() -> None:
    def turns(clients: int) -> float:
        change = [f"workload.concurrency={clients}", "workload.conversations=null",
                  "workload.turns={kind: uniform, low: 1, high: 20}"]  # fmt: skip
        s = load_scenario("agentic-13turn-8xh200", overrides=change)
        return mix_of(s.workload, s.seed).session_requests

    few, many = turns(2), turns(64)
    _mix.cache_clear()
    assert turns(64) == many != few


@pytest.mark.parametrize("clients", [1, 4, 12])
def test_sglang_decodes_nothing_in_steps_that_prefill(clients: int) -> None:
    change = [f"workload.concurrency={clients}", f"workload.requests={3 * clients}",
              "workload.output_tokens=400"]  # fmt: skip
    found = expected_of(load_scenario("sglang-8xh200", overrides=change))
    summary = simulate(load_scenario("sglang-8xh200", overrides=change)).summary
    assert found["output_tokens_per_s"] == pytest.approx(summary["output_tokens_per_s"], rel=0.2)
    assert found["e2e_mean"] == pytest.approx(summary["e2e_s"]["mean"], rel=0.2)
    assert found["prefix_hit_share"] == 0.0


def expected_of(asked: Any) -> dict[str, Any]:
    """Through the front door."""
    import hisparse_sim as hs

    return hs.expected(asked).data
