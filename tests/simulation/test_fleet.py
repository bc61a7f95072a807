"""Several engines on one clock: DP replicas, instances, and who is sent what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CONVERSATIONS, POISSON, STREAM, scenario

from hisparse_sim.errors import Infeasible, InputError
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


def test_steps_of_replicas_with_experts_are_outside_by_the_tokens_of_all():
    long = STREAM | {"prompt_tokens": 15_000, "output_tokens": 5}
    wide = DP | {"max_num_batched_tokens": 16_384}
    # Seven replicas run a token each beside the prompt: 15,007 of the 16,384 tokens that were measured.
    alone = run(long | {"concurrency": 1, "requests": 1}, wide).summary["out_of_domain"]
    assert (alone["steps"], alone["furthest"]) == (0, [])
    eight = run(long | {"concurrency": 8, "requests": 8}, wide).summary["out_of_domain"]
    (furthest,) = eight["furthest"]
    assert furthest["variable"] == "tokens of a step of all DP replicas"
    assert (furthest["value"], furthest["measured_to"]) == (8 * 15_000, 16_384)
    assert eight["steps"] == 8


def test_time_of_waiting_for_prefill_does_not_hang_on_how_many_engines_decode():
    at_once = STREAM | {"concurrency": 8, "requests": 8, "output_tokens": 4}

    def waited(decoding: int) -> float:
        cluster = {"instances": decoding, "prefill": {"instances": 1}}
        return run(at_once, RESIDENT, cluster=cluster).summary["waiting_for_s"]["max_num_batched_tokens"]

    assert waited(1) > 0
    assert waited(3) == pytest.approx(waited(1))


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


# -- prefill and decode apart ---------------------------------------------------------------------

PREFILL = {"engine": {"max_model_len": 16_000}}
EVEN = {"kind": "open", "arrivals": {"kind": "even", "rate_per_s": 0.5}, "requests": 6,
        "prompt_tokens": 12_345, "output_tokens": 400}  # fmt: skip


def apart(workload: dict[str, Any], engine: dict[str, Any], **prefill: Any) -> Result:
    return run(workload, engine, cluster={"prefill": PREFILL | prefill})


def test_decodes_are_not_disturbed_by_prefills_elsewhere():
    together, split = run(EVEN, RESIDENT), apart(EVEN, RESIDENT)
    assert together.summary["itl_s"]["p99"] > 5 * split.summary["itl_s"]["p99"]
    assert split.summary["tpot_s"]["p99"] < together.summary["tpot_s"]["p50"]
    assert split.summary["requests_completed"] == 6
    assert split.summary["prefill"]["replicas"] == 1


def test_a_prompt_crosses_the_network_once_for_each_rank():
    split = apart(EVEN, RESIDENT)
    row, indexer = 656, 132  # bytes of a token: latent row in 78 layers, indexer key in 21
    assert split.summary["network_bytes"] == pytest.approx(6 * 12_345 * 8 * (78 * row + 21 * indexer))
    loads = split.requests["load_end_s"] - split.requests["load_start_s"]
    assert np.allclose(loads, split.summary["network_bytes"] / 6 / 8 / 50e9)


def test_a_slower_network_delays_the_first_token_by_as_much():
    fast, slow = apart(EVEN, RESIDENT), apart(EVEN, RESIDENT, link_bytes_per_s=1e9)
    rank_bytes = fast.summary["network_bytes"] / 6 / 8
    later = slow.requests["ttft_s"] - fast.requests["ttft_s"]
    assert np.allclose(later, rank_bytes / 1e9 - rank_bytes / 50e9, atol=0.03)  # a step or two


def test_a_prompt_is_written_to_the_host_once_and_so_is_each_output():
    for lands in ("gpu", "host"):
        summary = apart(EVEN, {"mode": "hisparse"}, lands=lands).summary
        assert summary["device_to_host_bytes"] == pytest.approx(6 * (12_345 + 400) * 78 * 656)


def test_a_prompt_lands_on_the_host_if_the_gpu_has_no_room_for_it():
    # 110,000 tokens are 1,719 pages of 21 blocks.
    engine = {"mode": "hisparse", "max_model_len": 120_000, "num_gpu_blocks": 26_000}
    two = EVEN | {"prompt_tokens": 110_000, "requests": 2, "output_tokens": 20}

    def found(lands: str) -> dict[str, Any]:
        prefill = {"lands": lands, "engine": {"max_model_len": 120_000}}
        return run(two, engine, cluster={"prefill": prefill}).summary

    assert found("auto") == found("host")
    assert found("host")["requests_completed"] == 2
    assert found("gpu")["standstill"]["requests"] == 2


def test_a_prompt_lands_on_the_gpu_while_that_has_room():
    gpu, auto = (apart(EVEN, {"mode": "hisparse"}, lands=lands).summary for lands in ("gpu", "auto"))
    assert gpu == auto


@pytest.mark.parametrize(
    ("engine", "lands"),
    [(RESIDENT, "gpu"), ({"mode": "hisparse"}, "gpu"), ({"mode": "hisparse"}, "host")],
)
def test_all_blocks_come_back_wherever_prompts_land(engine, lands):
    from hisparse_sim.simulation.replica import build_replica

    asked = scenario(
        CONVERSATIONS,
        mode=engine["mode"],
        engine=engine,
        cluster={"instances": 1, "prefill": PREFILL | {"lands": lands}},
    )
    replica = build_replica(asked)
    result = simulate(asked, replica=replica)
    assert result.summary["requests_completed"] == 18
    assert replica.memory.gpu.free == replica.memory.gpu.total
    if engine["mode"] == "hisparse":
        pool = replica.memory.host_pool
        assert pool.free == pool.total
        assert replica.memory.hot_in_use == replica.memory.pages == replica.memory.copies.host_only == 0


def test_prompts_that_land_in_the_host_pool_are_read_through_the_hot_buffer():
    to_gpu, to_host = (apart(EVEN, {"mode": "hisparse"}, lands=where).summary for where in ("gpu", "host"))
    assert to_gpu["hot_hit_rate"] is None
    assert 0.5 < to_host["hot_hit_rate"] < 1
    assert to_host["tpot_s"]["mean"] > to_gpu["tpot_s"]["mean"]
    assert to_host["gpu_kv_usage_max"] <= to_gpu["gpu_kv_usage_max"]


def test_a_prefilling_engine_keeps_blocks_until_they_are_read():
    # Decoding has room for one of these at a time, prefilling for two.
    pool = {"num_gpu_blocks": 230, "max_model_len": 13_000}
    burst = EVEN | {"arrivals": {"kind": "even", "rate_per_s": 50}}
    held = run(
        burst,
        RESIDENT | pool,
        cluster={"prefill": {"engine": pool | {"num_gpu_blocks": 400}}},
    )
    requests = held.requests
    assert held.summary["requests_completed"] == 6
    # The third prompt is not begun before the first one has been read, which its decoding allows at once;
    # the fourth one not before the second one has been read: when the first request has ended.
    begun, ended = requests["first_scheduled_s"].to_numpy(), requests["finish_s"].to_numpy()
    assert begun[3] >= ended[0]
    assert begun[4] >= ended[1]


def test_a_request_too_long_to_decode_is_not_prefilled():
    split = run(
        EVEN,
        RESIDENT | {"max_model_len": 12_500},
        cluster={"prefill": PREFILL},
    )
    assert split.summary["requests_failed"] == 6
    assert split.summary["engine_steps"] == 0


def test_a_request_too_long_to_prefill_fails_by_that_name():
    split = run(EVEN, RESIDENT, cluster={"prefill": {"engine": {"max_model_len": 8192}}})
    assert split.summary["requests_failed"] == 6
    assert "12,346 tokens exceed max_model_len 8,192" in split.requests["reason"][0]


def test_a_preempted_request_is_prefilled_again_where_it_decodes():
    # Blocks for two prompts, and not for what they say.
    pool = {"num_gpu_blocks": 400, "max_model_len": 14_000}
    long = EVEN | {"requests": 2, "output_tokens": 1500, "arrivals": {"kind": "even", "rate_per_s": 50}}
    split = run(long, RESIDENT | pool, cluster={"prefill": {"engine": {"max_model_len": 16_000}}})
    assert split.summary["preemptions"] > 0
    assert split.summary["requests_completed"] == 2
    assert split.summary["network_bytes"] == apart(long, RESIDENT).summary["network_bytes"]


@pytest.mark.parametrize("engine", [{"mode": "offload"}, {"mode": "hisparse", "version": "0.30"}])
def test_modes_that_take_nothing_over_are_refused(engine):
    with pytest.raises(InputError, match=r"cluster\.prefill.*are simulated in modes resident and hisparse"):
        run(EVEN, engine, cluster={"prefill": PREFILL})


def test_rows_of_another_format_are_not_handed_over():
    given = {"engine": {"max_model_len": 16_000, "kv_cache_dtype": "bf16"}}
    with pytest.raises(InputError, match=r"cluster\.prefill\.engine\.kv_cache_dtype.*both must be the same"):
        run(EVEN, RESIDENT, cluster={"prefill": given})
    # Of none given it is that of the instances that decode: a pool of such rows holds more tokens.
    fp8, bf16 = (
        apart(EVEN, RESIDENT | {"kv_cache_dtype": rows}).summary["prefill"]["num_gpu_blocks"]
        for rows in ("fp8", "bf16")
    )
    assert fp8 > 1.4 * bf16


def test_a_prefilling_engine_that_cannot_start_is_named():
    with pytest.raises(Infeasible, match=r"cluster\.prefill\.engine\.max_model_len"):
        run(EVEN, RESIDENT, cluster={"prefill": {"engine": {"max_model_len": 16_000, "num_gpu_blocks": 20}}})
