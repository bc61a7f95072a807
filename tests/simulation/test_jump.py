"""Taking steps that decide nothing at once gives what single steps give, to the last bit."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate

lengths = st.integers(1, 3000)
singles = st.fixed_dictionaries(
    {
        "kind": st.just("poisson"),
        "rate_per_s": st.sampled_from([0.5, 5.0, 50.0]),
        "requests": st.integers(1, 25),
        "prompt_tokens": lengths,
        "output_tokens": st.integers(2, 400),
        "length_jitter": st.sampled_from([0.0, 0.7]),
        "shared_prefix_tokens": st.sampled_from([0, 1]),
    }
)
talks = st.fixed_dictionaries(
    {
        "kind": st.just("conversations"),
        "concurrency": st.integers(1, 6),
        "conversations": st.integers(1, 8),
        "turns": st.integers(1, 4),
        "first_prompt_tokens": st.integers(100, 5000),
        "new_tokens_per_turn": st.integers(1, 400),
        "output_tokens": st.integers(1, 300),
        "think_time_s": st.sampled_from([0.0, 0.3]),
    }
)
engines = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["resident", "offload", "hisparse"]),
        "async_scheduling": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "enable_prefix_caching": st.booleans(),
        "max_num_seqs": st.sampled_from([2, 64]),
        "max_num_batched_tokens": st.sampled_from([256, 2048]),
        "available_kv_gib": st.sampled_from([0.6, 1.0, 6.0]),
        "host_pool_gib": st.sampled_from([0.5, 30]),
        "indexer_offload_gib": st.sampled_from([0, 8]),
        "kv_offload_gib": st.sampled_from([8, 80]),
        "block_size": st.sampled_from([16, 64]),
    }
)


def run(engine: dict[str, Any], workload: dict[str, Any], *, single_step: bool) -> Result:
    settings_ = [f"engine.{k}={str(v).lower()}" for k, v in engine.items()]
    settings_ += [f"engine.single_step={str(single_step).lower()}", f"workload={workload}"]
    return simulate(load_scenario("agentic-13turn-8xh200", overrides=settings_))


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(engine=engines, workload=st.one_of(singles, talks))
def test_jumps_and_single_steps_agree(engine: dict[str, Any], workload: dict[str, Any]) -> None:
    engine["max_num_seqs"] = min(engine["max_num_seqs"], engine["max_num_batched_tokens"])
    jumped = run(engine, workload, single_step=False)
    stepped = run(engine, workload, single_step=True)
    assert jumped.request_records == stepped.request_records
    assert jumped.step_rows == stepped.step_rows
    assert jumped.summary == stepped.summary


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
