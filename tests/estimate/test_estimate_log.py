"""A real log against what is derived: Qwen3-30B-A3B on one H100 (kolyangg/mlops-assignment), and others
as in tests/scenario/test_vllm_log.py."""

from __future__ import annotations

import pytest

from hisparse_sim.estimate.log_check import check_log
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.vllm_log import StartupLog, parse_log

GLM, H200 = load_model("glm-5.3"), load_node("8xh200")


def findings(model, node, log: StartupLog, **engine):
    found = check_log(model, node, EngineSpec(**engine, **log.overrides()), log)
    return {f.what: f for f in found}


def test_glm_5_3_as_vllm_0_28_started_it():
    # vllm-project/recipes PR #893: 94.46 GiB of weights a rank, 25.94 GiB left for KV.
    log = parse_log("Model loading took 94.46 GiB and 60 seconds\nAvailable KV cache memory: 25.94 GiB")
    found = findings(GLM, H200, log, kv_cache_dtype="fp8")
    weights = found["weights a GPU, GiB"]
    assert weights.contradicts
    assert weights.difference == pytest.approx(0.074, abs=0.001)
    reserve = found["activations and runtime, GiB"]
    assert (reserve.derived, reserve.logged) == (15.0, pytest.approx(8.77, abs=0.01))
    assert found["KV memory, GiB"].difference == pytest.approx(-0.01, abs=0.002)
    assert "-1.0%" in found["KV memory, GiB"].sentence


def test_a_wrong_kv_dtype_shows_in_the_bytes_of_a_token():
    log = parse_log("Available KV cache memory: 46.80 GiB\nGPU KV cache size: 715,072 tokens")
    kimi = load_model("kimi-k2")
    right = findings(kimi, H200, log, kv_cache_dtype="bf16")
    assert not right["KV of a token, bytes"].contradicts
    assert not right["KV cache size, tokens"].contradicts
    wrong = findings(kimi, H200, log, kv_cache_dtype="fp8")
    assert wrong["KV of a token, bytes"].difference == pytest.approx(1.0, abs=0.01)
    assert "+100.0%" in wrong["KV of a token, bytes"].sentence


def test_settings_of_the_log_that_differ_are_named():
    arguments = "args: {'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.5}"
    log = parse_log(f"{arguments}\nGPU KV cache size: 5,120 tokens")
    found = findings(load_model("llama-3.1-8b"), H200, log)
    assert found["tensor_parallel_size"].sentence == "tensor_parallel_size: the log has 2, this question 8"
    assert found["gpu_memory_utilization"].contradicts


def test_a_hisparse_log_agrees_block_by_block():
    log = parse_log(
        "HiSparse HMA: 384.0 GiB host source (125829 blocks), 25.9 GiB shared GPU indexer/resident/hot pool "
        "(132680 blocks).\nGPU KV cache size: 3,648,000 tokens, Maximum concurrency for 1,048,576 tokens per "
        "request: 3.48x\nHiSparse steady-state maximum concurrency for 1,048,576 tokens per request: 6.34x\n"
    )
    found = findings(GLM, H200, log, kv_cache_dtype="fp8", max_num_batched_tokens=32_768, host_pool_gib=384)
    assert not any(f.contradicts for f in found.values())
    assert "steady-state maximum concurrency" in found
    other = findings(GLM, H200, log, kv_cache_dtype="bf16", max_num_batched_tokens=32_768, host_pool_gib=384)
    assert other["HiSparse block, bytes"].contradicts


def test_a_refused_start_needs_what_is_derived():
    log = parse_log(
        "max_seq_len=262144\n(8.58 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (0.9 GiB). the estimated maximum model length is 27392"
    )
    found = findings(load_model("kimi-k2"), load_node("8xh100"), log, kv_cache_dtype="fp8")
    assert not found["KV of one longest request, GiB"].contradicts
