"""Steps and requests on the clock."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import ALONE, CONVERSATIONS, POISSON, run, scenario

from hisparse_sim.cost.work import StepWork
from hisparse_sim.simulation.replica import build_replica
from hisparse_sim.simulation.run import simulate

MODES = ("resident", "offload", "hisparse")


def chunks(prompt_tokens: int, budget: int) -> list[tuple[int, int]]:
    """(new, past) of each step of a prompt that is alone."""
    return [(min(budget, prompt_tokens - past), past) for past in range(0, prompt_tokens, budget)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_request_alone_takes_what_its_steps_cost(mode, asynchronous):
    asked = scenario(ALONE, mode=mode, engine={"async_scheduling": asynchronous})
    cost = build_replica(asked).cost
    result = simulate(asked)
    (request,) = result.request_records
    mirrored = mode == "hisparse"
    prefill = chunks(3000, 2048)
    ttft = sum(
        cost.step(
            StepWork(prefills=(c,), sampled=int(sum(c) == 3000), mirrored_tokens=c[0] * mirrored)
        ).total_s
        for c in prefill
    )
    decodes = [
        cost.step(
            StepWork(
                decode_requests=1, decode_context_tokens=context, sampled=1, mirrored_tokens=int(mirrored)
            )
        ).total_s
        for context in range(3001, 3040)
    ]
    summary = result.summary
    assert request.sampled == 40
    assert summary["ttft_s"]["mean"] == pytest.approx(ttft, rel=1e-12)
    assert summary["tpot_s"]["mean"] == pytest.approx(np.mean(decodes), rel=1e-12)
    assert summary["itl_s"]["mean"] == pytest.approx(np.mean(decodes), rel=1e-12)
    assert summary["e2e_s"]["p99"] == pytest.approx(ttft + sum(decodes), rel=1e-12)
    assert summary["engine_steps"] == len(prefill) + 39
    assert summary["running_mean"] == summary["running_time_weighted"] == 1
    assert summary["waiting_mean"] == 0
    assert summary["verdict"] == "stable"
    assert summary["output_tokens_per_s"] == pytest.approx(40 / (ttft + sum(decodes)))
    assert summary["total_tokens_per_s"] == pytest.approx(3040 / (ttft + sum(decodes)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workload", [CONVERSATIONS, POISSON], ids=["closed", "open"])
def test_times_never_go_back_and_everything_ends(mode, workload):
    result = run(workload, mode=mode)
    assert result.summary["complete"]
    for r in result.request_records:
        assert r.status == "completed"
        assert r.sampled == r.output_tokens
        assert 0 <= r.arrival_s <= r.first_scheduled_s < r.first_token_s <= r.finish_s == r.last_token_s


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_step_rows_cover_all_steps_once_and_in_order(mode, asynchronous):
    result = run(CONVERSATIONS, mode=mode, engine={"async_scheduling": asynchronous})
    steps, summary = result.steps, result.summary
    assert steps["first_step"].iloc[0] == 0
    assert (steps["first_step"].iloc[1:].to_numpy() == steps["last_step"].iloc[:-1].to_numpy() + 1).all()
    assert steps["steps"].sum() == summary["engine_steps"] == result.timing["engine_steps"]
    assert (steps["end_s"] > steps["start_s"]).all()
    assert (steps["start_s"].iloc[1:].to_numpy() >= steps["end_s"].iloc[:-1].to_numpy()).all()
    assert steps["end_s"].iloc[-1] == summary["sim_time_s"]


@pytest.mark.parametrize("mode", MODES)
def test_the_parts_of_all_steps_add_up_to_the_time_that_the_gpu_was_busy(mode):
    result = run(CONVERSATIONS, mode=mode)
    busy = float((result.steps["end_s"] - result.steps["start_s"]).sum())
    assert sum(result.summary["step_time_s"].values()) == pytest.approx(busy, rel=1e-9)
    assert "link" not in result.summary["step_time_s"]


def test_tokens_of_the_steps_are_those_of_the_requests():
    result = run(CONVERSATIONS, mode="resident")
    steps = result.steps
    computed = sum(r.prompt_tokens - r.hit_tokens for r in result.request_records)
    alone = Counter(r.prompt_tokens - r.hit_tokens for r in result.request_records)[1]
    assert steps["prefill_tokens"].sum() == computed - alone
    assert (steps["decodes"] * steps["steps"]).sum() == sum(r.sampled - 1 for r in result.request_records)


def test_with_asynchronous_scheduling_an_arrival_misses_the_step_already_decided():
    work = {"kind": "poisson", "rate_per_s": 4, "requests": 2, "prompt_tokens": 1000, "output_tokens": 300}
    waits = {}
    for asynchronous in (False, True):
        first, second = run(work, mode="resident", engine={"async_scheduling": asynchronous}).request_records
        assert first.first_token_s < second.arrival_s < first.finish_s  # it comes amid decode steps
        waits[asynchronous] = second.first_token_s - second.arrival_s
    decode_s = run(work | {"requests": 1}, mode="resident").summary["tpot_s"]["mean"]
    assert waits[True] - waits[False] == pytest.approx(decode_s, rel=0.02)


def test_one_client_alone_notices_nothing_of_asynchronous_scheduling():
    work = CONVERSATIONS | {"concurrency": 1, "conversations": 2}
    now, later = (run(work, engine={"async_scheduling": a}) for a in (False, True))
    assert [r.finish_s for r in now.request_records] == [r.finish_s for r in later.request_records]


@pytest.mark.parametrize("mode", MODES)
def test_one_seed_gives_one_result(mode, tmp_path):
    work = POISSON | {"length_jitter": 0.5}
    for name in ("a", "b"):
        run(work, mode=mode, seed=7).write(tmp_path / name)
    run(work, mode=mode, seed=8).write(tmp_path / "other")
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == ["requests.parquet", "scenario.yaml", "steps.parquet", "summary.json", "timing.json"]
    for file in files:
        if file != "timing.json":
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    one, other = (json.loads((tmp_path / n / "summary.json").read_text()) for n in ("a", "other"))
    assert one["sim_time_s"] != other["sim_time_s"]


def test_waiting_is_what_queueing_theory_says():
    # One place and prompts of one step: an M/D/1 queue.
    work = {"kind": "poisson", "rate_per_s": 1, "requests": 1500, "prompt_tokens": 1000, "output_tokens": 1}
    service_s = run(work | {"requests": 1}, mode="resident").summary["ttft_s"]["mean"]
    load = 0.6
    result = run(
        work | {"rate_per_s": load / service_s},
        mode="resident",
        engine={"max_num_seqs": 1, "enable_prefix_caching": False},
    )
    wait_s = result.summary["ttft_s"]["mean"] - service_s
    assert wait_s == pytest.approx(service_s * load / (2 * (1 - load)), rel=0.12)


def test_load_and_stores_of_the_offload_tier_are_on_the_link_and_in_the_rows():
    # Four conversations of which the GPU holds one.
    work = CONVERSATIONS | {"conversations": 4, "turns": 3}
    result = run(work, mode="offload", engine={"num_gpu_blocks": 70, "max_model_len": 3800})
    summary, steps = result.summary, result.steps
    assert summary["offload_hit_rate"] > 0.3
    assert summary["host_to_device_bytes"] == pytest.approx(8 * steps["h2d_bytes"].sum())
    assert summary["device_to_host_bytes"] == pytest.approx(8 * steps["d2h_bytes"].sum())
    block = result.pools.block_bytes
    loaded = summary["offload_hit_rate"] * sum(r.prompt_tokens for r in result.request_records)
    assert summary["host_to_device_bytes"] == pytest.approx(8 * block * loaded / 64)
    # Each prompt block is stored once.
    prompts = {(r.session, r.prompt_tokens // 64) for r in result.request_records}
    blocks = sum(max(n for s, n in prompts if s == session) for session in {s for s, _ in prompts})
    assert summary["device_to_host_bytes"] == pytest.approx(8 * block * blocks)


def test_a_load_takes_its_time_on_the_link():
    # Two conversations take turns; the GPU holds one, so that each turn loads what the other displaced.
    work = CONVERSATIONS | {"concurrency": 2, "conversations": 2}
    ttft, loaded = {}, {}
    for rate in (55e9, 55e7):
        asked = scenario(work, mode="offload", engine={"num_gpu_blocks": 70, "max_model_len": 3800})
        link = asked.node.host_link.model_copy(update={"copy_h2d_bytes_per_s": rate})
        node = asked.node.model_copy(update={"host_link": link})
        result = simulate(asked.model_copy(update={"node": node}))
        ttft[rate] = result.summary["ttft_s"]["mean"] * 6
        loaded[rate] = result.summary["host_to_device_bytes"] / 8
    assert loaded[55e7] == loaded[55e9] > 100 * 3e6
    assert ttft[55e7] - ttft[55e9] > loaded[55e7] * (1 / 55e7 - 1 / 55e9) * 0.9


def test_what_can_never_run_fails_and_the_rest_goes_on():
    work = CONVERSATIONS | {"first_prompt_tokens": 1000, "new_tokens_per_turn": 1000, "turns": 4}
    result = run(work, engine={"max_model_len": 3500})
    summary = result.summary
    assert summary["complete"]
    assert summary["verdict"] == "infeasible"
    assert summary["requests_failed"] == 6
    assert summary["requests_completed"] == 18
    failed = [r for r in result.request_records if r.status == "failed"]
    assert all("exceed max_model_len 3,500" in r.reason for r in failed)
    assert all(r.first_scheduled_s is None and r.finish_s is None for r in failed)


def test_a_conversation_that_fails_a_thousand_times_does_not_nest():
    work = CONVERSATIONS | {"concurrency": 1, "conversations": 1, "turns": 1500}
    summary = run(work, engine={"max_model_len": 3300}).summary
    assert (summary["requests_completed"], summary["requests_failed"]) == (2, 1498)


def test_a_prompt_needs_room_for_one_token_even_if_none_is_asked_for():
    work = {"kind": "stream", "concurrency": 1, "requests": 1, "prompt_tokens": 4096, "output_tokens": 1}
    assert run(work, engine={"max_model_len": 4097}).summary["requests_completed"] == 1
    assert run(work, engine={"max_model_len": 4096}).summary["requests_failed"] == 1


def test_the_first_requests_in_order_of_arrival_are_sent_and_no_more():
    result = run(CONVERSATIONS | {"limit": 7})
    assert len(result.request_records) == result.summary["requests_completed"] == 7


@pytest.mark.parametrize(
    ("shared", "asynchronous", "delay", "batched"),
    [(2900, False, None, 64), (2900, False, 3, 64), (0, True, 3, 2048)],
)
def test_room_made_by_a_step_that_runs_nothing_is_used(shared, asynchronous, delay, batched):
    # All places of the pool are given up by one request, and its last pages come back after its end.
    result = run(
        CONVERSATIONS | {"shared_prefix_tokens": shared, "output_tokens": 10},
        engine={
            "max_num_seqs": 3,
            "num_gpu_blocks": 4000,
            "async_scheduling": asynchronous,
            "transfer_delay_steps": delay,
            "max_num_batched_tokens": batched,
            "max_model_len": 3800,
            "host_pool_gib": 0.6,
        },
    )
    assert result.summary["requests_completed"] == 18


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_the_pools_and_knobs_every_request_is_served(data):
    draw = data.draw
    mode = draw(st.sampled_from(MODES))
    blocks = draw(st.integers(4000, 9000) if mode == "hisparse" else st.integers(61, 200))
    result = run(
        CONVERSATIONS
        | {
            "concurrency": draw(st.integers(1, 6)),
            "shared_prefix_tokens": draw(st.sampled_from([0, 1000, 2950])),
            "think_time_s": draw(st.sampled_from([0, 0.01, 2])),
            "output_tokens": draw(st.integers(1, 60)),
        },
        mode=mode,
        engine={
            "num_gpu_blocks": blocks,
            "max_model_len": 3800,
            "max_num_seqs": draw(st.integers(1, 8)),
            "max_num_batched_tokens": draw(st.sampled_from([64, 1000, 8192])),
            "async_scheduling": draw(st.booleans()),
            "enable_prefix_caching": draw(st.booleans()),
            "policy": draw(st.sampled_from(["fcfs", "priority"])),
            "watermark": draw(st.sampled_from([0, 0.05])),
            "transfer_delay_steps": draw(st.sampled_from([0, 1, 4])),
            "host_pool_gib": draw(st.sampled_from([0.3, 0.6, 2])),
            "kv_offload_gib": draw(st.sampled_from([0, 1, 8])),
            "indexer_offload_gib": draw(st.sampled_from([0, 1])),
        },
    )
    summary = result.summary
    assert summary["requests_completed"] == 18
    assert summary["complete"]
    for r in result.request_records:
        assert r.sampled == r.output_tokens
        assert 0 <= r.arrival_s <= r.first_scheduled_s < r.first_token_s <= r.finish_s
        assert 0 <= r.hit_tokens <= r.prompt_tokens
    assert 0 <= summary["prefix_hit_rate"] < 1
    assert 0 <= summary["gpu_kv_usage_mean"] <= summary["gpu_kv_usage_max"] <= 1
    # Little's law: what is inside, from its arrivals and its stay.
    inside = summary["running_time_weighted"] + summary["waiting_mean"]
    stay = sum(r.finish_s - r.arrival_s for r in result.request_records) / summary["sim_time_s"]
    assert inside <= stay * 1.000001
