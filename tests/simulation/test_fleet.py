"""Several engines on one clock: DP replicas, instances, and who is sent what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CONVERSATIONS, POISSON, STREAM, scenario

from hisparse_sim.simulation.fleet import merged
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate

RESIDENT = {"mode": "resident"}
DP = RESIDENT | {"tp": 1, "dp": 8, "max_model_len": 16_000}
"""Eight replicas of one GPU each, which share the experts of all."""


def run(workload: dict[str, Any], engine: dict[str, Any], **data: Any) -> Result:
    return simulate(scenario(workload, mode=engine["mode"], engine=engine, **data))


def test_twice_the_instances_serve_twice_the_clients_alike():
    one = run(STREAM, RESIDENT).summary
    clients = {"concurrency": 2 * STREAM["concurrency"], "requests": 2 * STREAM["requests"]}
    two = run(STREAM | clients, RESIDENT, cluster={"instances": 2}).summary
    for figure in ("ttft_s", "tpot_s", "e2e_s"):
        assert two[figure]["mean"] == pytest.approx(one[figure]["mean"], rel=1e-9)
    assert two["output_tokens_per_s"] == pytest.approx(2 * one["output_tokens_per_s"])
    assert two["total_tokens_per_s_per_gpu"] == pytest.approx(one["total_tokens_per_s_per_gpu"])
    assert two["running_mean"] == pytest.approx(2 * one["running_mean"], rel=0.05)
    assert two["gpu_kv_usage_mean"] == pytest.approx(one["gpu_kv_usage_mean"])
    assert two["engine_steps"] == 2 * one["engine_steps"]
    assert two["replicas"] == 2
    assert [r["requests_completed"] for r in two["by_replica"].values()] == [8, 8]


def test_link_and_host_figures_of_two_instances_are_those_of_each():
    tight = {"mode": "hisparse", "num_gpu_blocks": 6000, "max_model_len": 3800}
    one = run(CONVERSATIONS, tight).summary
    clients = {"concurrency": 8, "conversations": 12}
    two = run(CONVERSATIONS | clients, tight, cluster={"instances": 2, "router": "prefix_affinity"}).summary
    assert one["host_to_device_bytes"] > 0
    for figure in ("pcie_h2d_usage_mean", "pcie_d2h_usage_mean", "dram_usage_mean", "hot_hit_rate"):
        assert two[figure] == pytest.approx(one[figure], rel=1e-9), figure
    assert two["host_to_device_bytes"] == pytest.approx(2 * one["host_to_device_bytes"])


def test_dp_replicas_of_a_model_with_experts_step_together():
    result = run(POISSON | {"length_jitter": 0.5}, DP | {"single_step": True})
    steps = result.steps
    ends = {number: set(of["end_s"]) for number, of in steps.groupby("replica")}
    assert len(ends) == 8
    everything = sorted(set().union(*ends.values()))
    starts = np.sort(steps["start_s"].unique())
    # Within a step of one replica no step of another ends.
    for number, of in steps[steps["steps"] == 1].groupby("replica"):
        for start, end in zip(of["start_s"], of["end_s"], strict=True):
            inside = [t for t in everything if start + 1e-9 < t < end - 1e-9]
            assert not inside, number
    assert starts[0] == pytest.approx(result.requests["arrival_s"].min())
    assert result.summary["step_time_s"]["peers"] > 0


def test_replicas_with_the_same_to_do_do_not_wait_for_each_other():
    alike = STREAM | {"concurrency": 8, "requests": 8}
    summary = run(alike, DP).summary
    assert "peers" not in summary["step_time_s"]
    assert [r["requests_completed"] for r in summary["by_replica"].values()] == [1] * 8


def test_a_decode_waits_for_the_prefill_of_another_replica():
    two = {"kind": "open", "arrivals": {"kind": "even", "rate_per_s": 0.5}, "requests": 2,
           "prompt_tokens": 15_000, "output_tokens": 900}  # fmt: skip
    together = run(two, DP).requests
    apart = run(two, DP, cluster={"instances": 2}).requests
    assert together["itl_max_s"][0] > 5 * apart["itl_max_s"][0]


def test_replicas_of_a_dense_model_go_on_by_themselves():
    engine = RESIDENT | {"tp": 1, "dp": 4, "kv_cache_dtype": "auto", "host_pool_gib": "auto"}
    summary = run(POISSON, engine | {"kv_offload_gib": 0}, model="llama-3.1-8b").summary
    assert "peers" not in summary["step_time_s"]
    assert summary["replicas"] == 4


def test_a_request_to_an_idle_replica_waits_for_the_pass_under_way():
    two = {"kind": "open", "arrivals": {"kind": "even", "rate_per_s": 10}, "requests": 2,
           "prompt_tokens": 15_000, "output_tokens": 20}  # fmt: skip
    result = run(two, DP | {"single_step": True})
    first, second = result.requests["arrival_s"]
    steps = result.steps
    begins = steps[steps["replica"] == 1]["start_s"].min()
    ends = steps[steps["replica"] == 0]["end_s"]
    assert begins > second
    assert begins == ends[ends > second].min()
    assert first < begins


def test_conversations_find_their_prefix_where_the_router_looks_for_it():
    talk = CONVERSATIONS | {
        "concurrency": 10,
        "conversations": 10,
        "turns": 5,
        "output_tokens": {"kind": "uniform", "low": 20, "high": 200},
    }
    rates = {
        policy: run(talk, RESIDENT, cluster={"instances": 3, "router": policy}).summary["prefix_hit_rate"]
        for policy in ("round_robin", "least_loaded", "prefix_affinity")
    }
    assert rates["prefix_affinity"] > 1.3 * max(rates["round_robin"], rates["least_loaded"])
    alone = run(talk, RESIDENT).summary["prefix_hit_rate"]
    assert rates["prefix_affinity"] == pytest.approx(alone, rel=0.02)


def test_prefix_affinity_gives_way_when_one_instance_has_much_more_to_do():
    shared = STREAM | {"concurrency": 24, "requests": 24, "shared_prefix_tokens": 2500}
    rules = {"instances": 3, "router": "prefix_affinity"}
    crowded = run(shared, RESIDENT, cluster=rules).summary
    spread = run(shared, RESIDENT, cluster=rules | {"balance_abs_threshold": 2}).summary
    # Nobody else is ever sent anything with the first rule: 24 requests are fewer than 64.
    assert crowded["by_replica"] is None
    assert max(r["requests_completed"] for r in spread["by_replica"].values()) <= 11


def test_round_robin_sends_in_turn():
    result = run(POISSON, RESIDENT, cluster={"instances": 3, "router": "round_robin"})
    assert result.requests["replica"].tolist() == [0, 1, 2] * 4


def test_the_same_seed_gives_the_same_run():
    once, again = (run(POISSON | {"length_jitter": 0.5}, DP) for _ in range(2))
    assert once.summary == again.summary
    assert once.requests.equals(again.requests)
    assert once.steps.equals(again.steps)


@pytest.mark.parametrize("mode", ["resident", "offload", "hisparse"])
def test_every_request_is_served_in_every_mode(mode):
    summary = run(CONVERSATIONS, {"mode": mode, "tp": 2, "dp": 4, "max_model_len": 16_000}).summary
    assert summary["requests_completed"] == 18
    assert summary["verdict"] in ("stable", "backlogged")


changes = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 9)), max_size=8)


@given(st.lists(changes, min_size=1, max_size=4))
def test_queues_of_all_engines_add_up(found):
    queues = [[(float(t), a, b) for t, a, b in sorted({e[0]: e for e in one}.values())] for one in found]
    total = merged(queues)
    times = [t for t, _, _ in total]
    assert times == sorted(set(times))

    def at(queue: list[tuple[float, int, int]], when: float) -> tuple[int, int]:
        return next(((a, b) for t, a, b in reversed(queue) if t <= when), (0, 0))

    for when in range(22):
        each = [at(queue, when) for queue in queues]
        assert at(total, when) == (sum(a for a, _ in each), sum(b for _, b in each))
