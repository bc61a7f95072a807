"""More memory never holds fewer requests; docs/explanation/laws.md states the law."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from hisparse_sim.errors import Infeasible
from hisparse_sim.estimate.concurrency import mode_pools
from hisparse_sim.memory.budget import PoolSizes, size_pools
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.node import NodeSpec

H200 = load_node("8xh200")
GIB = 2**30

ENGINES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["resident", "offload", "hisparse"]),
        "version": st.sampled_from(["0.33", "0.30"]),
        "tp": st.sampled_from([4, 8]),
        "mtp": st.sampled_from([0, 3]),
        "max_model_len": st.integers(64, 2**20),
        "max_num_batched_tokens": st.sampled_from([512, 8192, 32_768]),
        "async_scheduling": st.booleans(),
        "shared_host_pool": st.booleans(),
        "kv_offload_gib": st.sampled_from([0, 64]),
        "host_pool_gib": st.one_of(st.just("auto"), st.floats(1, 200)),
        "gpu_memory_utilization": st.floats(0.8, 1.0),
    }
)
MODELS = st.sampled_from(["glm-5.3", "deepseek-v3.2", "kimi-k2", "llama-3.1-8b"])


def machine(hbm: float, dram: float) -> NodeSpec:
    """A node with so many times the memory."""
    gpu = H200.gpu.model_copy(update={"memory_bytes": int(H200.gpu.memory_bytes * hbm)})
    return H200.model_copy(update={"gpu": gpu, "dram_bytes": int(H200.dram_bytes * dram)})


def bounds(sizes: PoolSizes) -> list[float]:
    """Concurrency that vLLM states for requests of ``max_model_len``: at the start, and steady."""
    return [sizes.max_concurrency, sizes.steady_concurrency or 0.0]


@settings(max_examples=200)
@given(
    name=MODELS,
    data=ENGINES,
    hbm=st.floats(1, 3),
    more_hbm=st.floats(1, 2),
    dram=st.floats(0.2, 2),
    more_dram=st.floats(1, 3),
    host_gib=st.floats(0, 300),
)
def test_more_memory_never_lowers_the_concurrency_bound(
    name: str,
    data: dict[str, Any],
    hbm: float,
    more_hbm: float,
    dram: float,
    more_dram: float,
    host_gib: float,
) -> None:
    model = load_model(name)
    if model.attention != "dsa":  # these have no MTP layer, and no indexer for HiSparse
        data = data | {"mtp": 0, "mode": "resident" if data["mode"] == "hisparse" else data["mode"]}
    data = data | {"max_model_len": min(data["max_model_len"], model.max_context_tokens)}
    engine = EngineSpec(kv_cache_dtype="fp8", **data)
    try:
        now = size_pools(model, machine(hbm, dram), engine)
    except Infeasible:
        event("does not start")
        return
    pool = engine.host_pool_gib
    larger = engine if pool == "auto" else engine.model_copy(update={"host_pool_gib": pool + host_gib})
    grown = [
        (machine(hbm * more_hbm, dram), engine),
        (machine(hbm, dram * more_dram), engine),
        (machine(hbm, dram * more_dram + 2), larger),
        (machine(9, dram), engine.model_copy(update={"available_kv_gib": now.kv_bytes / GIB * more_hbm})),
    ]
    tokens = max(1, engine.max_model_len // 3)
    held = mode_pools(model, machine(hbm, dram), engine, engine.mode).count(tokens).requests
    for node, changed in grown:
        then = size_pools(model, node, changed)
        assert all(a <= b for a, b in zip(bounds(now), bounds(then), strict=True))
        assert held <= mode_pools(model, node, changed, engine.mode).count(tokens).requests
