"""Speculative decoding with the model's MTP layer, simulated and estimated."""

from __future__ import annotations

from typing import Any

import pytest

from hisparse_sim.cost.profile import load_profile
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.work import StepWork
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate

MODES = ("resident", "offload", "hisparse")


def result(*overrides: str, mode: str = "hisparse", mtp: int = 3) -> Result:
    settings = [
        f"engine.mode={mode}",
        f"engine.mtp={mtp}",
        "workload.concurrency=6",
        "workload.conversations=6",
    ]
    return simulate(load_scenario("agentic-13turn-8xh200", overrides=[*settings, *overrides]))


@pytest.mark.parametrize("mode", MODES)
def test_every_request_gets_its_tokens_and_a_step_brings_what_acceptance_says(mode: str) -> None:
    found = result(mode=mode)
    assert found.summary["requests_completed"] == 78
    assert set(found.requests["output_tokens"]) == {220}
    expected = 1 + 0.78 + 0.78**2 + 0.78**3
    assert found.summary["tokens_per_decode_step"] == pytest.approx(expected, rel=0.03)
    assert found.summary["draft_acceptance"] == pytest.approx((expected - 1) / 3, rel=0.04)
    assert found.summary["step_time_s"]["draft"] > 0


def test_one_seed_gives_one_result_and_another_seed_another() -> None:
    first, again, other = (result(f"seed={seed}").summary for seed in (1, 1, 2))
    assert first == again
    assert first["draft_acceptance"] != other["draft_acceptance"]


def test_drafts_that_are_never_accepted_only_cost() -> None:
    none = result("engine.mtp_acceptance=[0, 0, 0]").summary
    assert none["tokens_per_decode_step"] == 1
    assert none["tpot_s"]["mean"] > result(mtp=0).summary["tpot_s"]["mean"]


def test_accepted_drafts_make_tokens_come_faster() -> None:
    slow, fast = (result(mtp=n).summary for n in (0, 3))
    assert fast["tpot_s"]["mean"] < 0.75 * slow["tpot_s"]["mean"]
    assert fast["engine_steps"] < 0.6 * slow["engine_steps"]
    assert slow["tokens_per_decode_step"] is slow["draft_acceptance"] is None


def test_requests_that_preempt_each_other_lose_no_token() -> None:
    found = simulate(
        load_scenario(
            "stream-1m-8xh200",
            overrides=[
                "engine={mode: resident, tp: 8, mtp: 2, kv_tokens: 12000, max_model_len: 8000}",
                "workload={kind: stream, concurrency: 8, requests: 16, prompt_tokens: 1500,"
                " output_tokens: 900}",
            ],
        )
    )
    assert found.summary["preemptions"] > 0
    assert set(found.requests["output_tokens"]) == {900}


def cost(**engine: Any) -> StepCostModel:
    spec = EngineSpec(kv_cache_dtype="fp8", **engine)
    return StepCostModel(load_model("glm-5.3"), load_node("8xh200"), spec, load_profile("h200-published"))


def test_verifying_costs_more_than_a_decode_and_less_than_as_many_steps() -> None:
    plain = cost().step(StepWork(8, 8 * 80_000, sampled=8)).total_s
    drafting = cost(mtp=3)
    step = drafting.step(drafting.decode_work(8, 80_000))
    assert plain < step.total_s < 4 * plain
    assert step.total_s == pytest.approx(sum(step.parts_s))
    assert drafting.decode_tpot_s(8, 80_000) == pytest.approx(step.total_s / drafting.engine.tokens_a_step)


def test_each_further_draft_is_one_more_pass_of_one_layer() -> None:
    one, two, three = (
        cost(mtp=n).step(StepWork(4, 4 * 50_000, draft_tokens=4 * n, sampled=4 * (1 + n))).draft_s
        for n in (1, 2, 3)
    )
    assert 0 < three - two == pytest.approx(two - one, rel=0.2)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ("[0.5]", "has 1 shares for 3 drafted"),
        ("[0.5, 0.7, 0.1]", "none above the one before"),
        ("[1.2, 1, 1]", "0 to 1"),
    ],
)
def test_acceptance_that_cannot_be_is_named(rates: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_scenario("agentic-13turn-8xh200", overrides=["engine.mtp=3", f"engine.mtp_acceptance={rates}"])


def test_a_model_without_the_layer_cannot_draft() -> None:
    settings = ["model=llama-3.1-8b", "engine.mtp=2", "engine.mode=resident"]
    with pytest.raises(InputError, match="no MTP layer"):
        simulate(load_scenario("agentic-13turn-8xh200", overrides=settings))
