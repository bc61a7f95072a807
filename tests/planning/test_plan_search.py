"""A plan recommends what holds and costs least, says why, and says how sure that is."""

from __future__ import annotations

from typing import Any

import pytest

from hisparse_sim.cost.profile import profile_for
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.cost.work import StepWork
from hisparse_sim.errors import Infeasible, InputError
from hisparse_sim.planning.load import asked_of, loaded
from hisparse_sim.planning.price import prices_of
from hisparse_sim.planning.screen import _NOT_PRICED
from hisparse_sim.planning.search import Answer, Search
from hisparse_sim.planning.slo import parse_goals
from hisparse_sim.planning.space import space_of
from hisparse_sim.scenario.loader import scenario_from_mapping
from hisparse_sim.scenario.scenario import Scenario

WORKLOAD = {
    "kind": "conversations",
    "concurrency": 8,
    "turns": 3,
    "first_prompt_tokens": 20_000,
    "new_tokens_per_turn": 500,
    "output_tokens": 60,
}


def scenario(**change: Any) -> Scenario:
    data = {
        "name": "asked",
        "model": "glm-5.3",
        "node": "8xh200",
        "engine": {"mode": "hisparse", "host_pool_gib": 128, "kv_offload_gib": 256, "kv_cache_dtype": "fp8"},
        "workload": WORKLOAD,
    }
    return scenario_from_mapping({**data, **change})


def answer(base: Scenario, slo: list[str], vary: list[str], *, runs: int = 6, bisect: int = 0) -> Answer:
    plan = base.plan
    assert plan is not None
    space = space_of(base, plan, vary)
    prices = prices_of(plan, [p.scenario.node for p in space.points])
    return Search(space, parse_goals(slo), plan.objective, prices, runs, bisect).answer()


def test_the_cheapest_that_holds_is_recommended_and_was_simulated() -> None:
    base = scenario(plan={"prices": {"8xh200": 10, "8xb200": 11}})
    found = answer(base, ["ttft_p99<=60s"], ["node=8xh200,8xb200", "nodes=1..3"], runs=12)
    best = found.best
    assert best is not None and best.simulated is not None and not best.simulated.broken
    assert found.unsettled == 0
    for other in found.runners_up:
        assert other.value >= best.value
    assert best.found.nodes == 1
    assert best.found.scenario.node.name == "8xb200"  # a tenth dearer and more than a tenth faster
    assert best.holds_in == 100
    assert any(step.change == "2 machines" and step.hourly == 11 for step in found.next_steps)


def test_more_machines_are_taken_where_one_breaks_a_goal() -> None:
    base = scenario(plan={"objective": "nodes"})
    found = answer(base, ["ttft_p99<=6s"], ["nodes=1..8"])
    assert found.best is not None
    assert found.best.found.nodes > 1
    fewer = [p for p in found.failed if p.simulated]
    assert all(p.found.nodes < found.best.found.nodes for p in fewer)


def test_an_empty_space_says_which_goal_empties_it() -> None:
    with pytest.raises(Infeasible, match=r"ttft_p50<=1ms rules out 2 .*has ttft_p50 0\.\d+ s at best"):
        answer(scenario(plan={}), ["ttft_p50<=1ms"], ["nodes=1,2"])


def test_a_space_of_which_nothing_starts_says_why() -> None:
    with pytest.raises(
        Infeasible, match=r"none of 2 would start; .*max_model_len: a request has 2\d,\d+ tokens"
    ):
        answer(scenario(plan={}), ["ttft_p50<=1s"], ["engine.max_model_len=4096,8192"])


def test_data_parallel_choices_are_judged_by_estimate_alone() -> None:
    base = scenario(plan={})
    found = answer(base, ["ttft_p99<=60s"], ["engine.tp=4", "engine.dp=2"])
    assert found.best is not None
    assert found.best.simulated is None
    assert found.simulations == 0


def test_without_prices_gpus_stand_for_them_and_some_prices_are_refused() -> None:
    base = scenario(plan={"prices": {"8xh200": 10}})
    nodes = [base.node, base.node.model_copy(update={"name": "other"})]
    assert base.plan is not None
    with pytest.raises(InputError, match="has no other; give all node types"):
        prices_of(base.plan, nodes)
    unpriced = prices_of(base.plan.model_copy(update={"prices": {}}), nodes)
    assert (unpriced.unit, unpriced.hourly(base.node, 3)) == ("GPUs", 24.0)


def test_energy_comes_on_top_of_the_price() -> None:
    base = scenario(
        plan={"prices": {"8xh200": 10}, "energy": {"price_per_kwh": 0.2, "node_w": {"8xh200": 10_000}}}
    )
    assert base.plan is not None
    assert prices_of(base.plan, [base.node]).hourly(base.node, 2) == pytest.approx(24.0)


def test_a_run_does_not_depend_on_the_plan_section() -> None:
    from hisparse_sim.planning.point import key_of

    assert key_of(scenario(plan={"slo": ["ttft_p95<=1s"]}), "run") == key_of(scenario(), "run")


def test_workload_fields_are_no_choices() -> None:
    base = scenario(plan={})
    assert base.plan is not None
    with pytest.raises(InputError, match="is what is asked, not a choice"):
        space_of(base, base.plan, ["workload.concurrency=1,2"])


def test_a_load_divides_with_the_counts_that_a_workload_names() -> None:
    spec = scenario(workload={**WORKLOAD, "conversations": 40}).workload
    half = loaded(spec, asked_of(spec), 4)
    assert (half.concurrency, half.conversations) == (4, 20)  # type: ignore[union-attr]
    spec = scenario(
        workload={
            "kind": "open",
            "arrivals": {"kind": "piecewise", "steps": [{"duration_s": 10, "rate_per_s": 2}]},
            "prompt_tokens": 100,
            "output_tokens": 10,
        }
    ).workload
    assert asked_of(loaded(spec, asked_of(spec), 5)).amount == 5


@pytest.mark.parametrize("field", _NOT_PRICED)
def test_no_step_price_hangs_on_what_screening_shares_prices_over(field: str) -> None:
    other: dict[str, Any] = {
        "gpu_memory_utilization": 0.8, "max_model_len": 65536, "max_num_seqs": 7,
        "max_num_batched_tokens": 999, "host_pool_gib": 77.0, "long_prefill_token_threshold": 512,
        "enable_prefix_caching": False,
        "policy": "priority", "async_scheduling": False, "watermark": 0.1, "shared_host_pool": False,
        "indexer_offload_gib": 9.0, "kv_offload_gib": 9.0, "transfer_delay_steps": 3, "single_step": True,
        "reserve_gib": 9.0, "available_kv_gib": 9.0, "num_gpu_blocks": 999, "kv_tokens": 9999,
        "version": "0.30",
    }  # fmt: skip
    base = scenario()
    profile = profile_for(base.node)
    changed = base.engine.model_copy(update={field: other[field]})
    assert changed != base.engine

    def seconds(engine: Any) -> float:
        cost = StepCostModel(base.model, base.node, engine, profile)
        work: StepWork = cost.decode_work(9, 50_000, 0.3)._replace(
            prefills=((2000, 9000),), staged_tokens=900
        )
        return cost.step(work).total_s

    assert seconds(changed) == seconds(base.engine)
