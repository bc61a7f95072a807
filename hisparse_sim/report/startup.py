"""What the engine would print when it starts: the KV capacity derived from the scenario."""

from __future__ import annotations

from hisparse_sim.memory.budget import PoolSizes
from hisparse_sim.memory.layout import kv_layout
from hisparse_sim.memory.sglang_pools import chunk_tokens, places
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

GIB = 2**30


def capacity_lines(pools: PoolSizes, model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> list[str]:
    """The start-up lines of vLLM (``vllm/v1/core/kv_cache_utils.py``), in its words, for grepping both.

    Under HiSparse also its pool, hot-cache and steady-state lines (``vllm/v1/hisparse/``).
    """
    if engine.kind == "sglang":
        return _sglang_lines(pools, model, node, engine)
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


def _sglang_lines(pools: PoolSizes, model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> list[str]:
    """SGLang's line of limits (``managers/scheduler.py``), and what HiSparse adds to it, in our words."""
    lines = [
        f"max_total_num_tokens={pools.logged_tokens}, chunked_prefill_size={chunk_tokens(node, engine)}, "
        f"max_running_requests={places(model, engine, pools)}, "
        f"context_len={engine.context_length or model.max_context_tokens}"
    ]
    if pools.mode == "hisparse":
        lines += [
            f"HiSparse: {pools.host_pool_bytes / GIB:.1f} GiB of host memory a rank for "
            f"{(pools.num_host_blocks - 1) * pools.block_size:,} tokens; a request's hot buffer takes "
            f"{pools.hot_blocks * pools.block_size:,} of the device pool's",
            f"longest request: {pools.max_model_len:,} tokens",
        ]
    return lines
