"""Layout and pool sizes against what vLLM's own scheduler reported when it was started."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from memory_models import dsa, leaders, node

from hisparse_sim.memory.budget import size_pools
from hisparse_sim.memory.layout import kv_layout
from hisparse_sim.scenario.engine import EngineSpec

GOLDEN = Path(__file__).resolve().parents[2] / ".." / "shared" / "golden"
TRACES = sorted(GOLDEN.glob("v03[03]/*.jsonl.gz"))
MODES = {"hisparse": "hisparse", "vanilla": "resident", "cpu_offload": "offload"}

pytestmark = pytest.mark.skipif(not TRACES, reason="recorded scheduler traces are not here")


def facts(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as lines:
        return json.loads(next(lines))


@pytest.mark.parametrize("path", TRACES, ids=lambda p: f"{p.parent.name}-{p.name.split('.')[0]}")
def test_the_start_up_facts_are_vllms(path):
    config = facts(path)
    model, given = config["model"], config["engine"]
    spec = dsa(
        model["num_layers"],
        leaders(model["num_layers"], model["index_topk_freq"], model["index_skip_topk_offset"]),
        index_topk=model["index_topk"],
    )
    shared = given["shared_host_pool"]
    machine = node(8 if shared else 1, dram_gib=4096)
    stride = config.get("host_block_stride", 0)
    host_gib = given["host_pool_gib"] or (given["num_host_blocks"] or 0) * stride / 2**30
    chunks = given["num_cpu_chunks"] or 0
    gpu = (
        {"num_gpu_blocks": given["num_gpu_blocks"]}
        if given["num_gpu_blocks"]
        else {"available_kv_gib": given["gpu_kv_bytes"] / 2**30}
    )
    engine = EngineSpec(
        version=config["vllm"],
        mode=MODES[config["mode"]],
        kv_cache_dtype="fp8_ds_mla",
        host_pool_gib=host_gib or "auto",
        kv_offload_gib=chunks * -(-config["gpu_bytes_per_block"] // 4096) * 4096 / 2**30,
        shared_host_pool=shared,
        hot_rows=given["device_buffer_size"],
        max_model_len=given["max_model_len"],
        max_num_batched_tokens=given["max_num_batched_tokens"],
        async_scheduling=given["async_scheduling"],
        **gpu,
    )
    sizes = size_pools(spec, machine, engine)
    assert sizes.num_gpu_blocks == config["num_gpu_blocks"]
    assert sizes.block_bytes == config["gpu_bytes_per_block"]
    assert sizes.max_concurrency == config["max_concurrency_logged"]
    assert sizes.logged_tokens == config["kv_cache_size_tokens_logged"]
    if config["mode"] == "cpu_offload":
        assert sizes.num_cpu_chunks == config["num_cpu_chunks"]
    if config["mode"] != "hisparse":
        return
    assert sizes.num_host_blocks == config["num_host_blocks"]
    assert sizes.host_block_bytes == stride
    assert sizes.transition_watermark_blocks == config["transition_watermark"]
    assert sizes.hot_blocks == config["hot_blocks_per_request_total"]
    assert sizes.resident_groups == config["num_resident_groups"]
    assert sizes.steady_concurrency == config["steady_state_concurrency"]
    roles = [(g["spec"], g["layers"]) for g in config["groups"]]
    sets = [len(g) for g in kv_layout(spec, engine, machine).hisparse.groups]
    assert [n for s, n in roles if s == "HiSparseResidentSpec"] == sets
    assert [n for s, n in roles if s == "HiSparseHotSpec"] == sets
