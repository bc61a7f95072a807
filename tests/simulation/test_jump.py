"""Taking steps that decide nothing at once gives what single steps give, to the last bit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_sim.memory.base import NEVER
from hisparse_sim.memory.content import ContentIndex
from hisparse_sim.memory.pool import Ids
from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.resident import ResidentMemory
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.scheduler.decision import Decision
from hisparse_sim.scheduler.step import Scheduler
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate

SHARED = 500
TENANTS = [
    {"name": "gold", "priority": -1},
    {"name": "rest", "share": 2, "shared_prefix_tokens": 300},
    {"name": "batch", "priority": 3},
]
common = {
    "shared_prefix_tokens": st.sampled_from([0, SHARED]),
    "tenants": st.sampled_from([[], TENANTS]),
}
singles = st.fixed_dictionaries(
    {
        "kind": st.just("poisson"),
        "rate_per_s": st.sampled_from([0.5, 5.0, 50.0]),
        "requests": st.integers(1, 25),
        "prompt_tokens": st.integers(SHARED, 3000),
        "output_tokens": st.integers(2, 400),
        **common,
    }
)
crowds = st.fixed_dictionaries(
    {
        "kind": st.just("poisson"),
        "rate_per_s": st.just(100),
        "requests": st.integers(12, 25),
        "prompt_tokens": st.integers(SHARED, 1500),
        "output_tokens": st.just({"kind": "uniform", "low": 200, "high": 1200}),
        **common,
    }
)
NARROW = {"available_kv_gib": 0.6, "max_num_seqs": 64}
"""A pool in which ``crowds`` preempt each other."""
talks = st.fixed_dictionaries(
    {
        "kind": st.just("conversations"),
        "concurrency": st.integers(1, 6),
        "conversations": st.integers(1, 8),
        "turns": st.integers(1, 4),
        "first_prompt_tokens": st.integers(SHARED, 5000),
        "new_tokens_per_turn": st.integers(1, 400),
        "output_tokens": st.integers(1, 300),
        "think_time_s": st.sampled_from([0.0, 0.3]),
        **common,
    }
)
engines = st.fixed_dictionaries(
    {
        "async_scheduling": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "enable_prefix_caching": st.booleans(),
        "max_num_seqs": st.sampled_from([2, 64, 64]),
        "max_num_batched_tokens": st.sampled_from([256, 2048]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 400]),
        "available_kv_gib": st.sampled_from([0.6, 1.0, 6.0]),
        "host_pool_gib": st.sampled_from([0.5, 30]),
        "kv_offload_gib": st.sampled_from([8, 80]),
        "block_size": st.sampled_from([16, 64]),
        "watermark": st.sampled_from([0.0, 0.05]),
        "mtp": st.sampled_from([0, 0, 0, 0, 1, 2]),
    }
)
KINDS = {
    "resident": {"mode": "resident"},
    "offload": {"mode": "offload"},
    "hisparse": {"mode": "hisparse", "indexer_offload_gib": 0},
    "hisparse with an indexer offload": {"mode": "hisparse", "indexer_offload_gib": 8},
    "hisparse of 0.30": {"mode": "hisparse", "indexer_offload_gib": 0, "version": "0.30"},
}


def run(engine: dict[str, Any], workload: dict[str, Any], *, single_step: bool) -> Result:
    settings_ = [f"engine.{k}={str(v).lower()}" for k, v in engine.items()]
    settings_ += [f"engine.single_step={str(single_step).lower()}", f"workload={workload}"]
    return simulate(load_scenario("agentic-13turn-8xh200", overrides=settings_))


def same_if(engine: dict[str, Any], workload: dict[str, Any], memory: type, name: str, told: Any) -> Result:
    """A run, the same if the memory's method ``name`` always answers ``told``."""
    found = run(engine, workload, single_step=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, name, lambda memory, request: told)
        other = run(engine, workload, single_step=False)
    assert found.request_records == other.request_records
    assert found.step_rows == other.step_rows
    assert found.summary == other.summary
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_jumps_and_single_steps_agree(kind: str) -> None:
    seen: Counter[str] = Counter()
    # 0.30 has no steps to jump over, and takes its time.
    examples, least = (15, 1) if kind.endswith("0.30") else (40, 3)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(engine=engines, workload=st.one_of(singles, talks, crowds))
    def agree(engine: dict[str, Any], workload: dict[str, Any]) -> None:
        engine = (
            KINDS[kind]
            | engine
            | (NARROW if workload["kind"] == "poisson" and workload["rate_per_s"] == 100 else {})
        )
        jumped = run(engine, workload, single_step=False)
        stepped = run(engine, workload, single_step=True)
        assert jumped.request_records == stepped.request_records
        assert jumped.step_rows == stepped.step_rows
        assert jumped.summary == stepped.summary
        summary = jumped.summary
        seen["pressure"] += summary["preemptions"] > 0
        seen["no pressure"] += not summary["preemptions"] and not summary["waiting_share"]
        seen["waiting"] += (summary["waiting_share"] or 0) > 0.1
        seen["shared prefixes"] += (summary["prefix_hit_rate"] or 0) > 0
        seen["priorities"] += engine["policy"] == "priority" and bool(workload["tenants"])
        seen["asynchronous"] += engine["async_scheduling"]
        seen["drafts"] += summary["draft_acceptance"] is not None

    agree()
    # A law that was never put to the test holds for nothing.
    for what in (
        "pressure", "no pressure", "waiting", "shared prefixes", "priorities", "asynchronous", "drafts",
    ):  # fmt: skip
        assert seen[what] >= least, f"{what}: {seen}"


@pytest.mark.parametrize("kind", ["hisparse", "hisparse with an indexer offload"])
def test_who_waits_is_tried_again_once_more_of_its_prompt_can_be_found(kind: str) -> None:
    # The host pool has room for the second request only with the prefix that it shares with the first,
    # which is findable when it has been copied there: free blocks are then as many as before.
    engine = KINDS[kind] | {"available_kv_gib": 20, "host_pool_gib": 0.5, "block_size": 64}
    workload = {
        "kind": "poisson",
        "rate_per_s": 100,
        "requests": 2,
        "prompt_tokens": 6000,
        "output_tokens": 200,
        "shared_prefix_tokens": 2000,
    }
    jumped, stepped = (run(engine, workload, single_step=single) for single in (False, True))
    assert jumped.request_records == stepped.request_records
    assert jumped.step_rows == stepped.step_rows
    first, second = jumped.request_records
    assert first.first_token_s is not None
    assert second.first_scheduled_s is not None
    assert 0.0 < second.first_scheduled_s - first.first_token_s < 0.03


def test_blocks_that_are_only_counted_change_nothing() -> None:
    preemptions = hits = 0

    @settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
    @given(engine=engines, workload=st.one_of(talks, crowds))
    def agree(engine: dict[str, Any], workload: dict[str, Any]) -> None:
        nonlocal preemptions, hits
        engine = engine | KINDS["resident"] | (NARROW if workload["kind"] == "poisson" else {})
        counted = same_if(engine, workload, ResidentMemory, "private_from", NEVER)
        preemptions += counted.summary["preemptions"]
        hits += bool(counted.summary["prefix_hit_rate"])

    agree()
    assert preemptions
    assert hits


def test_pages_that_are_only_marked_change_nothing() -> None:
    preemptions = waits = 0

    @settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
    @given(engine=engines, workload=st.one_of(singles, crowds), offload_gib=st.sampled_from([0, 8]))
    def agree(engine: dict[str, Any], workload: dict[str, Any], offload_gib: int) -> None:
        nonlocal preemptions, waits
        workload = workload | {"shared_prefix_tokens": 0, "tenants": []}
        engine = engine | {"mode": "hisparse", "indexer_offload_gib": offload_gib}
        marked = same_if(engine, workload, HiSparseMemory, "_private", False)
        preemptions += marked.summary["preemptions"]
        waits += bool(marked.summary["waiting_share"])

    agree()
    assert preemptions
    assert waits


def test_a_lone_long_answer_takes_far_fewer_decisions_than_tokens() -> None:
    workload = {
        "kind": "stream",
        "concurrency": 1,
        "requests": 1,
        "prompt_tokens": 1000,
        "output_tokens": 5000,
    }
    engine = {"mode": "resident"}
    jumped = run(engine, workload, single_step=False)
    assert jumped.summary["engine_steps"] >= 5000
    assert len(jumped.step_rows) < 200


def test_a_short_request_takes_one_decision_and_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: Counter[str] = Counter()
    schedule, fresh = Scheduler.schedule, ContentIndex.fresh

    def counted(scheduler: Scheduler) -> Decision:
        decided["steps"] += 1
        return schedule(scheduler)

    def made(index: ContentIndex, n: int) -> Ids:
        decided["blocks"] += n
        return fresh(index, n)

    monkeypatch.setattr(Scheduler, "schedule", counted)
    monkeypatch.setattr(ContentIndex, "fresh", made)
    workload = {
        "kind": "poisson",
        "rate_per_s": 5,
        "requests": 60,
        "prompt_tokens": 512,
        "output_tokens": 300,
    }
    found = run({"mode": "resident", "async_scheduling": True}, workload, single_step=False)
    # Its prefill; where it joins those that decode and where its last token is on its way decide nothing.
    assert found.summary["engine_steps"] > 500
    assert 50 < decided["steps"] < 70
    assert not decided["blocks"]


def test_a_long_jump_looks_up_now_and_then() -> None:
    # At Ctrl-C, checkpoints and the bar, though nothing else happens.
    looks: list[float] = []
    workload = {
        "kind": "stream",
        "concurrency": 1,
        "requests": 1,
        "prompt_tokens": 100,
        "output_tokens": 400_000,
    }
    settings_ = ["engine.mode=resident", "engine.available_kv_gib=110", f"workload={workload}"]
    scenario = load_scenario("agentic-13turn-8xh200", overrides=settings_)
    found = simulate(scenario, progress=lambda now_s, *_: looks.append(now_s))
    assert found.summary["requests_completed"] == 1
    assert len(looks) >= 3
    assert looks == sorted(set(looks))
