"""Start-up logs, as people posted them.

Lines: vllm issue #10517 (V0, Llama-3.1-8B), kolyangg/mlops-assignment (V1, Qwen3-30B-A3B),
vllm-project/recipes moonshotai/Kimi-K2-Think.md (DCP), InferenceX issue #1587 (refused start); the format
of the HiSparse lines is vLLM 0.33's.
"""

# ruff: noqa: E501  (log lines are as long as they are)
from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.vllm_log import parse_log, read_log

CASES = Path(__file__).resolve().parents[2] / ".." / "shared" / "cases"

V1 = """\
(EngineCore_DP0 pid=1) INFO 06-16 14:13:41 [gpu_model_runner.py:2392] Model loading took 56.9342 GiB and 13.4 seconds
(EngineCore_DP0 pid=1) INFO 06-16 14:13:56 [gpu_worker.py:298] Available KV cache memory: 8.68 GiB
(EngineCore_DP0 pid=1) INFO 06-16 14:13:57 [kv_cache_utils.py:864] GPU KV cache size: 94,784 tokens
(EngineCore_DP0 pid=1) INFO 06-16 14:13:57 [kv_cache_utils.py:868] Maximum concurrency for 6,144 tokens per request: 15.43x
(EngineCore_DP0 pid=1) INFO 06-16 14:14:04 [gpu_worker.py:391] Free memory on device (78.57/79.18 GiB) on startup. Desired GPU memory utilization is (0.9, 71.26 GiB). Actual usage is 56.93 GiB for weight, 5.58 GiB for peak activation, 0.07 GiB for non-torch memory
"""
V0 = """\
Loading model weights took 14.9888 GB
Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.98GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.90
# GPU blocks: 1478, # CPU blocks: 2048
Maximum concurrency for 29000 tokens per request: 0.82x
"""
HISPARSE = """\
HiSparse HMA: 384.0 GiB host source (125829 blocks), 25.9 GiB shared GPU indexer/resident/hot pool (132680 blocks).
Enabled experimental HiSparse HMA hot cache: top_k=2048, device_buffer_size=4096 (4096 LRU rows), max_num_seqs=256
GPU KV cache size: 3,648,000 tokens, Maximum concurrency for 1,048,576 tokens per request: 3.48x
HiSparse steady-state maximum concurrency for 1,048,576 tokens per request: 6.34x
"""


def test_v1_lines_are_read():
    log = parse_log(V1)
    assert (log.available_kv_gib, log.kv_tokens) == (8.68, 94_784)
    assert (log.tokens_per_request, log.max_concurrency) == (6144, 15.43)
    assert (log.weights_gib, log.activation_gib) == (56.9342, 5.58)
    assert (log.total_gpu_gib, log.utilization) == (79.18, 0.9)
    assert log.overrides() == {"available_kv_gib": 8.68}


def test_v0_lines_are_read():
    log = parse_log(V0)
    assert (log.num_gpu_blocks, log.available_kv_gib, log.weights_gib) == (1478, 2.89, 14.9888)
    assert (log.tokens_per_request, log.max_concurrency) == (29_000, 0.82)
    blocks_only = parse_log("# GPU blocks: 1952, # CPU blocks: 2048\n2024-12-02 INFO next line\n")
    assert blocks_only.overrides() == {"num_gpu_blocks": 1952}


def test_hisparse_lines_are_read():
    log = parse_log(HISPARSE)
    assert (log.host_pool_gib, log.host_blocks) == (384.0, 125_829)
    assert (log.hisparse_pool_gib, log.hisparse_blocks, log.hot_rows) == (25.9, 132_680, 4096)
    assert (log.max_concurrency, log.steady_concurrency) == (3.48, 6.34)
    assert log.overrides() == {"mode": "hisparse", "num_gpu_blocks": 132_680}


def test_lines_that_a_terminal_broke_are_joined():
    log = parse_log("INFO [gpu_worker.py:276] Available KV cache me\nmory: 11.03 GiB\n")
    assert log.available_kv_gib == 11.03


def test_the_smallest_rank_and_the_last_start_count():
    one = "Initializing a V1 LLM engine (v0.10.2) with config: model='m', tensor_parallel_size=2\n"
    first = one + "Available KV cache memory: 9.00 GiB\nGPU KV cache size: 9,000 tokens\n"
    second = one + "Available KV cache memory: 11.10 GiB\nAvailable KV cache memory: 11.03 GiB\n"
    log = parse_log(first + second + "GPU KV cache size: 11,000 tokens\n")
    assert (log.starts, log.available_kv_gib, log.kv_tokens, log.tp) == (2, 11.03, 11_000, 2)


def test_a_blocks_override_wins_over_what_was_profiled():
    log = parse_log("Overriding num_gpu_blocks=65 with num_gpu_blocks_override=50\n" + V1)
    assert log.overrides() == {"num_gpu_blocks": 50}


def test_decode_context_parallelism_is_divided_out_of_tokens():
    log = parse_log(
        "Multiplying the GPU KV cache size by the dcp_world_size 8.\nGPU KV cache size: 5,721,088 tokens\n"
    )
    assert log.overrides() == {"kv_tokens": 715_136}


def test_a_refused_start_still_says_what_was_available():
    log = parse_log(
        "ValueError: To serve at least one request with the model's max seq len (262144), (8.58 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.9 GiB). Based on the available memory, the "
        "estimated maximum model length is 27392. Try increasing `gpu_memory_utilization`"
    )
    assert (log.available_kv_gib, log.needed_kv_gib, log.estimated_max_model_len) == (0.9, 8.58, 27_392)


def test_a_file_that_is_no_start_up_log_is_refused(tmp_path):
    nothing = tmp_path / "vllm.log"
    nothing.write_text("INFO: Uvicorn running\n")
    with pytest.raises(InputError) as error:
        read_log(nothing)
    assert error.value.where == str(nothing)
    assert "Available KV cache memory" in error.value.message
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "missing.log")
    with pytest.raises(InputError, match="is a folder"):
        read_log(tmp_path)


@pytest.mark.skipif(not CASES.exists(), reason="the collected start-up logs are not here")
@pytest.mark.parametrize(
    ("name", "gib", "tokens", "tp"),
    [
        ("13_qwen2-7b_2xA100_same-node_util0.25.log", 12.02, 450_192, 2),
        ("13_qwen2-7b_2xA100_same-node_util0.50.log", 31.83, 1_192_160, 2),
        ("13_qwen2-7b_2xA100-40GB_two-nodes_util0.50.log", 11.03, 412_944, 2),
        ("25_qwen3-30b-a3b_1xH100_startup+stats.log", 8.68, 94_784, 1),
        ("11_gpt-oss-120b_4xA100_ray.log", 45.32, 2_640_144, 4),
        ("23_qwen3.6-35b-a3b-nvfp4_mtp_gb10.log", 74.22, 3_366_051, 1),
    ],
)
def test_whole_logs_are_read(name, gib, tokens, tp):
    log = read_log(CASES / name)
    assert (log.available_kv_gib, log.kv_tokens, log.tp) == (gib, tokens, tp)
