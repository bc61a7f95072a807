"""The lines an engine would print when it starts, for the shipped scenarios."""

from __future__ import annotations

import pytest

from hisparse_sim.memory.budget import size_pools
from hisparse_sim.report.startup import capacity_lines
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.scenario.workload import ConversationsSpec, StreamSpec


def lines(name: str, *overrides: str) -> list[str]:
    scenario = load_scenario(name, overrides=overrides)
    pools = size_pools(scenario.model, scenario.node, scenario.engine)
    return capacity_lines(pools, scenario.model, scenario.node, scenario.engine)


def test_capacity_is_printed_as_vllm_prints_it() -> None:
    available, size, concurrency = lines(
        "agentic-13turn-8xh200", "engine.mode=resident", "engine.available_kv_gib=26.25"
    )
    assert available == "Available KV cache memory: 26.25 GiB"
    # 26.25 GiB over blocks of 64 rows of 656 bytes in 78 layers and 132 bytes in 21.
    blocks = int(26.25 * 2**30) // (64 * (656 * 78 + 132 * 21))
    assert size == f"GPU KV cache size: {blocks * 64:,} tokens"
    assert concurrency.startswith("Maximum concurrency for ")
    assert concurrency.endswith(" tokens per request: 1.00x")


def test_hisparse_says_both_pools_and_its_steady_state() -> None:
    text = "\n".join(lines("agentic-13turn-8xh200"))
    assert "HiSparse HMA: 384.0 GiB host source (" in text
    assert "top_k=2048, device_buffer_size=4096, max_num_seqs=256" in text
    assert "HiSparse steady-state maximum concurrency: " in text


def test_offload_says_what_its_memory_holds_once() -> None:
    text = "\n".join(lines("agentic-13turn-8xh200", "engine.mode=offload"))
    assert "CPU offload: 512 GiB over the TP ranks, 1,2" in text


def test_the_shipped_agentic_scenario_is_the_published_one() -> None:
    scenario = load_scenario("agentic-13turn-8xh200")
    workload = scenario.workload
    assert isinstance(workload, ConversationsSpec)
    assert (workload.turns, workload.first_prompt_tokens) == (13, 74_160)
    assert (workload.new_tokens_per_turn, workload.output_tokens) == (753, 220)
    assert scenario.engine.max_num_batched_tokens == 32_768


@pytest.mark.parametrize(("mode", "fits"), [("hisparse", True), ("offload", False), ("resident", False)])
def test_a_million_tokens_fit_only_with_hisparse(mode: str, fits: bool) -> None:
    scenario = load_scenario("stream-1m-8xh200", overrides=[f"engine.mode={mode}"])
    workload = scenario.workload
    assert isinstance(workload, StreamSpec)
    pools = size_pools(scenario.model, scenario.node, scenario.engine)
    assert (workload.prompt_tokens + workload.output_tokens <= pools.max_model_len) is fits
