"""An engine version that would not survive a scenario is an outcome with a name, a step and a remedy."""

from __future__ import annotations

from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.run import simulate

PRESSED = (
    "engine.indexer_offload_gib=0",
    "engine.available_kv_gib=8",
    "engine.max_model_len=20000",
    "engine.host_pool_gib=100",
    "workload={kind: poisson, rate_per_s: 20, requests: 60, prompt_tokens: 6000, output_tokens: 3000,"
    " length_jitter: 0.9}",
)


def run(version: str):
    return simulate(load_scenario("agentic-13turn-8xh200", overrides=[*PRESSED, f"engine.version={version}"]))


def test_vllm_030_dies_where_its_admission_forgets_the_copies_of_a_hit() -> None:
    result = run("0.30")
    death = result.summary["engine_death"]
    assert death["error"].startswith("Cannot get ")
    assert death["error"].endswith(" free blocks from the pool")
    assert death["step"] > 0
    assert "0.33" in death["remedy"]
    assert result.summary["verdict"] == "infeasible"
    assert result.summary["requests_incomplete"] == 0
    assert result.summary["requests_failed"] + result.summary["requests_completed"] == 60


def test_vllm_033_survives_the_same_scenario() -> None:
    summary = run("0.33").summary
    assert summary["engine_death"] is None
    assert summary["requests_completed"] == 60
