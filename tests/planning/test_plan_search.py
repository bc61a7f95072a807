"""A plan recommends what holds and costs least, says why, and says how sure that is."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec.structs import replace

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
from hisparse_sim.report.plan_text import plan_text
from hisparse_sim.scenario.loader import scenario_from_mapping
from hisparse_sim.scenario.plan import PlanSpec
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


def test_counts_that_no_replica_divides_are_named() -> None:
    base = scenario(plan={}, cluster={"instances": 2})
    with pytest.raises(Infeasible, match=r"takes 2 machines, and nodes 1, 3 has no multiple of that"):
        answer(base, ["ttft_p99<=60s"], ["nodes=1,3"])


def test_data_parallel_choices_are_simulated() -> None:
    found = answer(scenario(plan={}), ["ttft_p99<=60s"], ["engine.tp=4", "engine.dp=1,2"])
    assert found.best is not None and found.best.simulated is not None
    assert found.best.found.scenario.engine.dp == 2  # of one machine, all GPUs beat half of them
    assert found.best.simulated.limit and not found.best.simulated.broken


def test_a_cluster_behind_a_router_is_one_unit_of_as_many_machines() -> None:
    base = scenario(plan={}, cluster={"instances": 2})
    found = answer(base, ["ttft_p99<=60s"], ["nodes=1..4"])
    assert found.best is not None and found.best.simulated is not None
    assert found.best.found.nodes == 2
    assert {p.found.nodes for p in (found.best, *found.runners_up)} <= {2, 4}


def test_what_no_run_simulates_is_judged_by_estimate_alone_and_says_why() -> None:
    base = scenario(plan={})
    space = space_of(base, PlanSpec(nodes=2), ["engine.tp=16", "engine.host_pool_gib=200"])
    goals = parse_goals(["ttft_p99<=60s"])
    prices = prices_of(PlanSpec(), space.machines())
    found = Search(space, goals, "cost", prices, 6, 0).answer()
    assert found.best is not None and found.best.simulated is None
    assert found.simulations == 0
    text = plan_text(found, goals, asked_of(base.workload), prices)
    assert "by estimate alone: engine.tp: 16: run simulates a replica on one node" in text


def test_engines_are_choices_and_each_has_its_own_command() -> None:
    base = scenario(plan={}, engine={"mode": "hisparse", "kv_cache_dtype": "fp8"}, model="glm-5.1")
    assert base.plan is not None
    space = space_of(base, base.plan, ["engine.kind=vllm,sglang"])
    goals = parse_goals(["ttft_p99<=300s"])
    prices = prices_of(base.plan, space.machines())
    # As the best by estimate cannot be beaten by the other one in a hurry, ask for both.
    search = Search(space, goals, "goodput", prices, 4, 0)
    search._screen_all()
    assert {s.engine.kind for s in (p.scenario for p in space.points)} == {"vllm", "sglang"}
    assert search.screen.refused == {}
    of_sglang = space_of(base, base.plan, ["engine.kind=sglang"])
    found = Search(of_sglang, goals, "goodput", prices, 1, 0).answer()
    assert found.best is not None and found.best.simulated is not None
    text = plan_text(found, goals, asked_of(base.workload), prices)
    assert "python -m sglang.launch_server --model-path zai-org/GLM-5.1-FP8 --tp 8" in text
    estimate, run = found.best.found.output_tokens_per_s, found.best.simulated.output_tokens_per_s
    assert estimate == pytest.approx(run, rel=0.15)  # every turn computes its whole prompt


VARIED = [
    "node=8xh200,8xb200", "engine.mode=resident,offload,hisparse", "engine.host_pool_gib=64,128,512",
    "engine.max_num_seqs=8,16,32,64", "engine.max_num_batched_tokens=2048,8192", "nodes=1..3",
]  # fmt: skip


def test_what_is_drawn_from_a_space_is_the_best_of_it() -> None:
    pytest.importorskip("optuna")
    base = scenario(plan={"prices": {"8xh200": 30, "8xb200": 41}})
    assert base.plan is not None
    goals = parse_goals(["ttft_p99<=20s", "tpot_p50<=40ms"])

    def estimated(whole: bool, trials: int) -> tuple[Answer, Search]:
        space = space_of(base, base.plan or PlanSpec(), VARIED, whole=whole)
        search = Search(space, goals, "cost", prices_of(base.plan or PlanSpec(), space.machines()), 0, 0,
                        trials=trials)  # fmt: skip
        return search.answer(), search

    def best(search: Search) -> tuple[float, ...]:
        return min(search._expected(f) for f in search._found.values() if f.holds)

    (all_of_them, grid), (some, few), (_, again) = (
        estimated(True, 1), estimated(False, 60), estimated(False, 60)
    )  # fmt: skip
    assert (all_of_them.combinations, all_of_them.drawn) == (432, 0)
    assert some.combinations == 432 and some.drawn < 150
    assert best(few) == best(grid)
    assert few._ranked == again._ranked


def test_a_space_too_large_to_look_through_needs_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    base = scenario(plan={})
    many = ["engine.host_pool_gib=64..512:100", "engine.max_num_seqs=1..256", "nodes=1..8"]
    assert base.plan is not None
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"204,800 combinations .* pip install 'hisparse-sim\[search\]'"):
        space_of(base, base.plan, many)
    monkeypatch.undo()
    pytest.importorskip("optuna")
    assert space_of(base, base.plan, many).size == 204_800
    with pytest.raises(InputError, match=r"--vary engine.max_num_seqs"):  # before anything is drawn
        space_of(base, base.plan, [*many[:1], "engine.max_num_seqs=1..256,few", *many[2:]])


def test_simulations_in_two_processes_find_the_same() -> None:
    base = scenario(plan={})
    assert base.plan is not None
    space = space_of(base, base.plan, ["engine.max_num_batched_tokens=4096,8192"])
    prices = prices_of(base.plan, space.machines())

    def found(jobs: int) -> Answer:
        return Search(space, parse_goals(["ttft_p99<=30s"]), "cost", prices, 4, 2, jobs=jobs).answer()

    one, two = found(1), found(2)
    assert one.best is not None and two.best is not None
    assert one.best.found.sized.point.key == two.best.found.sized.point.key
    assert one.best.simulated == two.best.simulated
    assert one.best.largest_run == two.best.largest_run


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
        work: StepWork = replace(
            cost.decode_work(9, 50_000, 0.3), prefills=((2000, 9000),), staged_tokens=900
        )
        return cost.step(work).total_s

    assert seconds(changed) == seconds(base.engine)
