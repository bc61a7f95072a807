"""A scenario's engine as a vllm serve command, read back the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.cli.serve_flags import overrides, read_serve
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.catalogue import list_scenarios, load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.serve.command import NOT_FLAGS, as_started, serve_command
from hisparse_sim.serve.start import start_command
from hisparse_sim.serve.startup import check_startup


@pytest.mark.parametrize("mode", ["hisparse", "offload", "resident"])
@pytest.mark.parametrize("name", [n for n in list_scenarios() if load_scenario(n).engine.kind == "vllm"])
def test_the_command_of_a_shipped_scenario_starts_and_gives_it_back(name: str, mode: str) -> None:
    scenario = load_scenario(name, overrides=[f"engine.mode={mode}"])
    command = serve_command(scenario.model, scenario.node, scenario.engine)
    _, served = read_serve(command, scenario.node)
    back = load_scenario(name, overrides=overrides(served)[0])
    assert back.model == scenario.model
    assert back.engine == as_started(scenario.model, scenario.node, scenario.engine)
    check_startup(served, back.model, back.node, back.engine)
    assert not served.unmodelled and not served.ignored


MODEL, NODE = load_model("glm-5.3"), load_node("8xh200")


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["hisparse", "offload", "resident"]),
            "tp": st.sampled_from([None, 4, 8]),
            "dp": st.integers(1, 2),
            "ep": st.booleans(),
            "gpu_memory_utilization": st.sampled_from([0.85, 0.92]),
            "max_model_len": st.sampled_from(["auto", 131072]),
            "max_num_seqs": st.integers(1, 512),
            "max_num_batched_tokens": st.integers(1024, 65536),
            "kv_cache_dtype": st.sampled_from(["auto", "bf16", "fp8", "fp8_ds_mla"]),
            "mtp": st.integers(0, 3),
            "hot_rows": st.sampled_from([None, 8192, 12288]),
            "host_pool_gib": st.sampled_from([64.0, 256.5]),
            "indexer_offload_gib": st.sampled_from([0.0, 32.0]),
            "kv_offload_gib": st.sampled_from([0.0, 100.0]),
            "enable_prefix_caching": st.booleans(),
            "async_scheduling": st.booleans(),
            "policy": st.sampled_from(["fcfs", "priority"]),
            "watermark": st.sampled_from([0.0, 0.01]),
            "long_prefill_token_threshold": st.sampled_from([0, 2048]),
            "block_size": st.sampled_from([None, 64]),
            "available_kv_gib": st.sampled_from([None, 20.0]),
        }
    )
)
def test_every_field_that_a_flag_sets_comes_back(fields: dict[str, Any]) -> None:
    engine = EngineSpec(**fields)
    _, served = read_serve(serve_command(MODEL, NODE, engine), NODE)
    back = EngineSpec(**served.engine)
    assert back.model_dump(exclude=set(NOT_FLAGS)) == as_started(MODEL, NODE, engine).model_dump(
        exclude=set(NOT_FLAGS)
    )


def test_an_automatic_host_pool_becomes_the_number_that_vllm_needs() -> None:
    engine = as_started(MODEL, NODE, EngineSpec(mode="hisparse"))
    assert isinstance(engine.host_pool_gib, (int, float))
    assert engine.host_pool_gib < NODE.dram_bytes / 2**30


def test_sglang_has_no_vllm_serve_command() -> None:
    asked = load_scenario("sglang-8xh200")
    with pytest.raises(InputError, match="vllm serve"):
        serve_command(asked.model, asked.node, asked.engine)


def test_sglang_starts_with_its_own_flags() -> None:
    asked = load_scenario(
        "sglang-8xh200",
        overrides=["engine.tp=1", "engine.dp=8", "engine.mtp=3", "engine.context_length=40000"],
    )
    said = start_command(asked.model, asked.node, asked.engine)
    assert said == (
        "python -m sglang.launch_server --model-path zai-org/GLM-5.1-FP8 --tp 8 --dp 8 --enable-dp-attention "
        "--ep-size 8 --mem-fraction-static 0.85 --context-length 40000 --max-running-requests 480 "
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --enable-hisparse --hisparse-config "
        """'{"top_k":2048,"device_buffer_size":4096,"host_to_device_ratio":8}' --disable-radix-cache"""
    )


def test_vllm_starts_as_ever() -> None:
    engine = EngineSpec(mode="hisparse", host_pool_gib=128)
    assert start_command(MODEL, NODE, engine) == serve_command(MODEL, NODE, engine)
