"""A run ends, and says so, where vLLM would preempt one request for ever."""

from __future__ import annotations

import pytest

from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.run import simulate


@pytest.mark.parametrize(("blocks", "verdict"), [(4353, "infeasible"), (7500, "stable")])
def test_a_request_that_never_gets_further_fails_and_the_next_has_its_turn(blocks, verdict):
    # 4,353 blocks are just what vLLM wants at start-up for 32,768 tokens, but the second chunk of a prompt,
    # beside the first one still on its way to the host, and the hot buffer need more.
    settings = [
        "engine.mode=hisparse",
        "engine.async_scheduling=false",
        "engine.max_model_len=32768",
        "engine.max_num_batched_tokens=8192",
        f"engine.num_gpu_blocks={blocks}",
        "engine.host_pool_gib=100",
        "workload={kind: stream, concurrency: 1, requests: 2, prompt_tokens: 32000, output_tokens: 20}",
    ]
    summary = simulate(load_scenario("agentic-13turn-8xh200", overrides=settings)).summary
    assert summary["verdict"] == verdict
    assert summary["requests_completed"] == (2 if verdict == "stable" else 0)
    assert summary["requests_failed"] == (0 if verdict == "stable" else 2)
