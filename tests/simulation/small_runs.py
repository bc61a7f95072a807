"""Scenarios that run in milliseconds, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from hisparse_sim.scenario.loader import scenario_from_mapping
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate

CONVERSATIONS: dict[str, Any] = {
    "kind": "conversations",
    "concurrency": 4,
    "conversations": 6,
    "turns": 3,
    "first_prompt_tokens": 3000,
    "new_tokens_per_turn": 200,
    "output_tokens": 40,
}
STREAM: dict[str, Any] = {
    "kind": "stream",
    "concurrency": 4,
    "requests": 8,
    "prompt_tokens": 3000,
    "output_tokens": 40,
}
POISSON: dict[str, Any] = {
    "kind": "poisson",
    "rate_per_s": 2,
    "requests": 12,
    "prompt_tokens": 3000,
    "output_tokens": 40,
}
ALONE = STREAM | {"concurrency": 1, "requests": 1}


def scenario(workload: dict[str, Any], /, *, mode: str = "hisparse", **data: Any) -> Scenario:
    """GLM-5.3 on one 8xH200 node; other keys lie over those of the scenario, ``engine`` over its own."""
    engine = {
        "mode": mode,
        "max_model_len": 65_536,
        "max_num_batched_tokens": 2048,
        "kv_cache_dtype": "fp8",
        "host_pool_gib": 64,
        "kv_offload_gib": 64,
    }
    whole = {"name": "small", "model": "glm-5.3", "node": "8xh200", "workload": workload} | data
    return scenario_from_mapping(whole | {"engine": engine | data.get("engine", {})})


def run(workload: dict[str, Any], /, **data: Any) -> Result:
    """The run of such a scenario."""
    return simulate(scenario(workload, **data))
