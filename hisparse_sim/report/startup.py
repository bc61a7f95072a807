"""What the engine would print when it starts: the KV capacity derived from the scenario."""

from __future__ import annotations

from hisparse_sim.memory.budget import PoolSizes
from hisparse_sim.memory.layout import kv_layout
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

GIB = 2**30


def capacity_lines(pools: PoolSizes, model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> list[str]:
    """The start-up lines of vLLM (``vllm/v1/core/kv_cache_utils.py``), in its words, for grepping both.

    Under HiSparse also its pool, hot-cache and steady-state lines (``vllm/v1/hisparse/``).
    """
    lines = [
        f"Available KV cache memory: {pools.kv_bytes / GIB:.2f} GiB",
        f"GPU KV cache size: {pools.logged_tokens:,} tokens",
        f"Maximum concurrency for {pools.max_model_len:,} tokens per request: {pools.max_concurrency:.2f}x",
    ]
    if pools.mode == "offload":
        lines.append(
            f"CPU offload: {engine.kv_offload_gib:g} GiB over the TP ranks, "
            f"{pools.num_cpu_chunks * pools.block_size:,} distinct tokens"
        )
    sparse = kv_layout(model, engine, node).hisparse
    if pools.mode != "hisparse" or sparse is None:
        return lines
    gpu_bytes = pools.num_gpu_blocks * pools.block_bytes
    lines += [
        f"HiSparse HMA: {pools.host_pool_bytes / GIB:.1f} GiB host source ({pools.num_host_blocks} blocks), "
        f"{gpu_bytes / GIB:.1f} GiB shared GPU indexer/resident/hot pool ({pools.num_gpu_blocks} blocks).",
        f"Enabled experimental HiSparse HMA hot cache: top_k={model.index_topk}, "
        f"device_buffer_size={sparse.hot_rows}, max_num_seqs={engine.max_num_seqs}",
    ]
    if pools.steady_concurrency is not None:
        lines.append(f"HiSparse steady-state maximum concurrency: {pools.steady_concurrency:.2f}x")
    return lines
