"""How large the pools are: weights, what is left for KV, host memory, and what vLLM would say at start-up.

In: model, node, engine. Out: ``PoolSizes``. Everything is per rank (one GPU) unless a name says
otherwise; a data-parallel replica is ``tp`` ranks that hold the same blocks.
"""

from __future__ import annotations

from msgspec import Struct

from hisparse_sim.errors import Infeasible, InputError, PoolTooSmall
from hisparse_sim.memory.host import GIB, host_block_stride, host_pool, indexer_chunks, offload_chunks, place
from hisparse_sim.memory.layout import (
    MLA_BLOCK_TOKENS,
    HiSparseLayout,
    KVLayout,
    ceil_div,
    kv_layout,
    require_hisparse,
    tensor_parallel,
)
from hisparse_sim.memory.reserve import reserve_bytes
from hisparse_sim.scenario.engine import EngineSpec, Mode
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

ACTIVE_TAIL_PAGES = 2
"""Last pages of a request that HiSparse never gives back."""


class PoolSizes(Struct, frozen=True):
    """The memory of one engine, per rank.

    ``num_gpu_blocks`` and ``num_host_blocks`` count the null block, as vLLM does. Host figures are of
    one pool: a replica's shared pool, or a rank's own. ``num_cpu_chunks`` and ``num_indexer_chunks``
    are distinct chunks (each TP rank keeps its own copy of them). ``admission_window_pages`` is what
    admission sets aside for a request in each resident group (``cap``).
    """

    mode: Mode
    block_size: int
    block_bytes: int
    kv_bytes: int
    num_gpu_blocks: int
    num_host_blocks: int
    host_block_bytes: int
    num_cpu_chunks: int
    num_indexer_chunks: int
    resident_groups: int
    hot_blocks_per_group: int
    admission_window_pages: int
    transition_watermark_blocks: int
    max_model_len: int
    weights_bytes: int
    reserve_bytes: int
    host_pool_bytes: int
    max_concurrency: float
    steady_concurrency: float | None
    logged_tokens: int

    @property
    def hot_blocks(self) -> int:
        """Blocks of one request's hot buffer over all groups (``H``)."""
        return self.resident_groups * self.hot_blocks_per_group


def size_pools(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> PoolSizes:
    """Size every pool of ``engine`` and check what vLLM checks at start-up.

    Raises ``Infeasible`` when the model, the host pool or one request of ``max_model_len`` does not
    fit, ``InputError`` when the settings contradict each other.
    """
    if engine.kind == "sglang":
        from hisparse_sim.memory.sglang_pools import size_sglang_pools

        return size_sglang_pools(model, node, engine)
    placement = place(node, engine)
    layout = kv_layout(model, engine, node)
    kv_bytes = kv_pool_bytes(model, node, engine)
    sparse: HiSparseLayout | None = None
    if engine.mode == "hisparse":
        sparse = require_hisparse(layout, model)
        if not node.hisparse:
            raise Infeasible(
                f"HiSparse runs on NVIDIA GPUs only; {node.name} has {node.gpu.name}", where="engine.mode"
            )
    block_bytes = sparse.block_bytes if sparse else layout.block_bytes
    gpu_blocks = kv_bytes // block_bytes
    host_block_bytes, host_pool_bytes, host_blocks = 0, 0, 0
    if sparse:
        host_block_bytes = host_block_stride(sparse, placement, engine)
        host_pool_bytes = host_pool(node, engine, placement)
        host_blocks = host_pool_bytes // host_block_bytes
    chunks = offload_chunks(node, engine, placement, layout.block_bytes)
    index_chunks = indexer_chunks(node, engine, placement, sparse)
    max_len = _max_model_len(model, engine, layout, sparse, gpu_blocks, host_blocks)
    window = admission_window(engine, layout.block_size, max_len)
    logged = logged_concurrency(engine, layout, sparse, gpu_blocks, host_blocks, max_len)
    return PoolSizes(
        mode=engine.mode,
        block_size=layout.block_size,
        block_bytes=block_bytes,
        kv_bytes=kv_bytes,
        num_gpu_blocks=gpu_blocks,
        num_host_blocks=host_blocks,
        host_block_bytes=host_block_bytes,
        num_cpu_chunks=chunks,
        num_indexer_chunks=index_chunks,
        resident_groups=sparse.resident_groups if sparse else 0,
        hot_blocks_per_group=sparse.hot_blocks_per_group if sparse else 0,
        admission_window_pages=window if sparse else 0,
        transition_watermark_blocks=max(sparse.hot_blocks, gpu_blocks // 10) if sparse else 0,
        max_model_len=max_len,
        weights_bytes=weights_per_gpu(model, node, engine),
        reserve_bytes=reserve_bytes(model, engine, tensor_parallel(node, engine)),
        host_pool_bytes=host_pool_bytes,
        max_concurrency=logged,
        steady_concurrency=steady_concurrency(engine, layout, sparse, gpu_blocks, host_blocks, max_len),
        logged_tokens=int(logged * max_len),
    )


def weights_per_gpu(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> int:
    """Weight bytes of one rank: shared / TP, plus routed / (DP x TP) with expert parallelism, / TP without.

    vLLM's HiSparse calculator page splits GLM-5.3 the same way (19.556 and 684.167 GiB). The MTP layer
    counts whether or not it drafts, as on that page: the sum with the reserve is what was checked.
    """
    tp = tensor_parallel(node, engine)
    expert_ranks = tp * engine.dp if engine.ep else tp
    weights = model.weights
    return ceil_div(weights.shared_bytes, tp) + ceil_div(weights.routed_bytes, expert_ranks)


def derived_kv_bytes(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> int:
    """HBM x utilisation - weights - reserve: what vLLM prints as available KV cache memory.

    May be negative: the model does not fit.
    """
    budget = int(node.gpu.memory_bytes * engine.gpu_memory_utilization)
    tp = tensor_parallel(node, engine)
    return budget - weights_per_gpu(model, node, engine) - reserve_bytes(model, engine, tp)


def kv_pool_bytes(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> int:
    """Bytes a GPU gives to KV: the engine's override, or derived.

    Raises ``PoolTooSmall`` when not one block is left, ``Infeasible`` for an override that is more
    than the GPU's memory. Less than that but more than derived is believed: a log knows better.
    """
    layout = kv_layout(model, engine, node)
    hisparse = engine.mode == "hisparse"
    given: int | None = None
    if engine.available_kv_gib is not None:
        given = int(engine.available_kv_gib * GIB)
    elif engine.kv_tokens is not None:
        given = engine.kv_tokens // layout.block_size * layout.block_bytes
    elif engine.num_gpu_blocks is not None:
        block = require_hisparse(layout, model).block_bytes if hisparse else layout.block_bytes
        given = engine.num_gpu_blocks * block
    if given is not None:
        if given > node.gpu.memory_bytes:
            raise Infeasible(
                f"means {given / GIB:,.1f} GiB of KV a GPU; {node.gpu.name} has "
                f"{node.gpu.memory_bytes / GIB:,.1f} GiB in all",
                where=f"engine.{_gpu_field(engine)}",
            )
        return given
    left = derived_kv_bytes(model, node, engine)
    field = _gpu_field(engine)
    if 0 < left < layout.block_bytes:
        raise PoolTooSmall(
            f"one KV block of {layout.block_size:,} tokens takes {layout.block_bytes / GIB:,.2f} GiB over "
            f"{layout.num_layers:,} layers, larger than the pool: {left / GIB:,.2f} GiB of {node.gpu.name} "
            "are left for KV",
            where=f"engine.{field}" if field else "model",
        )
    if left <= 0:
        weights = weights_per_gpu(model, node, engine)
        reserve = reserve_bytes(model, engine, tensor_parallel(node, engine))
        budget = int(node.gpu.memory_bytes * engine.gpu_memory_utilization)
        raise PoolTooSmall(
            f"{model.name} does not fit on {node.name}: a GPU needs {weights + reserve:,} bytes "
            f"({weights / GIB:.1f} GiB weights + {reserve / GIB:.1f} GiB activations and runtime) before any "
            f"KV, and {budget:,} bytes ({budget / GIB:.1f} GiB, {engine.gpu_memory_utilization:.0%} of "
            f"{node.gpu.memory_bytes / GIB:.1f}) are available",
            where="engine.reserve_gib" if field == "reserve_gib" and weights < budget else "model",
        )
    return left


def _gpu_field(engine: EngineSpec) -> str:
    """The engine's field that fixes the GPU pool, or the size of its blocks; empty when all is derived."""
    names = ("available_kv_gib", "kv_tokens", "num_gpu_blocks", "reserve_gib")
    given = next((name for name in names if getattr(engine, name) is not None), "")
    return given or ("block_size" if (engine.block_size or 0) > MLA_BLOCK_TOKENS else "")


def _host_field(engine: EngineSpec) -> str:
    """The same for the host pool."""
    if engine.host_pool_gib != "auto":
        return "host_pool_gib"
    return "indexer_offload_gib" if engine.indexer_offload_gib else ""


def admission_window(engine: EngineSpec, block_size: int, max_model_len: int) -> int:
    """``cap``: pages a resident group that admission sets aside for the tokens in flight.

    Tokens in flight are ``max_num_batched_tokens``, twice that under asynchronous scheduling.
    """
    in_flight = engine.max_num_batched_tokens * (2 if engine.async_scheduling else 1)
    return ceil_div(min(in_flight, max_model_len), block_size)


def admission_blocks(engine: EngineSpec, layout: KVLayout, sparse: HiSparseLayout | None, tokens: int) -> int:
    """GPU blocks that vLLM's start-up check and logged concurrency charge a request of ``tokens``."""
    pages = ceil_div(tokens, layout.block_size)
    if sparse is None:
        return pages
    window = admission_window(engine, layout.block_size, tokens)
    if engine.version.startswith("0.30"):
        window = pages
    return pages + sparse.resident_groups * window + sparse.hot_blocks


def steady_blocks(engine: EngineSpec, layout: KVLayout, sparse: HiSparseLayout, tokens: int) -> int:
    """GPU blocks of a running request once its pages are on the host: indexer, tail pages, hot buffer."""
    window = admission_window(engine, layout.block_size, tokens)
    tail = sparse.resident_groups * min(window, ACTIVE_TAIL_PAGES)
    return ceil_div(tokens, layout.block_size) + tail + sparse.hot_blocks


def logged_concurrency(
    engine: EngineSpec,
    layout: KVLayout,
    sparse: HiSparseLayout | None,
    gpu_blocks: int,
    host_blocks: int,
    max_model_len: int,
) -> float:
    """vLLM's ``Maximum concurrency for … tokens per request`` (null block counted, as vLLM does)."""
    gpu = gpu_blocks / admission_blocks(engine, layout, sparse, max_model_len)
    if sparse is None:
        return gpu
    return min(gpu, host_blocks / ceil_div(max_model_len, layout.block_size))


def steady_concurrency(
    engine: EngineSpec,
    layout: KVLayout,
    sparse: HiSparseLayout | None,
    gpu_blocks: int,
    host_blocks: int,
    max_model_len: int,
) -> float | None:
    """vLLM 0.33's ``HiSparse steady-state maximum concurrency``; none for other modes and 0.30."""
    if sparse is None or engine.version.startswith("0.30"):
        return None
    first = admission_blocks(engine, layout, sparse, max_model_len)
    each = steady_blocks(engine, layout, sparse, max_model_len)
    gpu = gpu_blocks / first if gpu_blocks < first else 1 + (gpu_blocks - first) / each
    return min(gpu, host_blocks / ceil_div(max_model_len, layout.block_size))


def fits_at_start(
    engine: EngineSpec,
    layout: KVLayout,
    sparse: HiSparseLayout | None,
    gpu_blocks: int,
    host_blocks: int,
    tokens: int,
) -> bool:
    """vLLM's start-up check: one request of ``tokens`` fits the free blocks of each pool."""
    pages = ceil_div(tokens, layout.block_size)
    if sparse is None or engine.version.startswith("0.30"):
        return pages <= gpu_blocks - 1
    need = admission_blocks(engine, layout, sparse, tokens)
    return need <= gpu_blocks - 1 and pages + 2 <= host_blocks


def _max_model_len(
    model: ModelSpec,
    engine: EngineSpec,
    layout: KVLayout,
    sparse: HiSparseLayout | None,
    gpu_blocks: int,
    host_blocks: int,
) -> int:
    """The engine's ``max_model_len``, or the largest that passes the start-up check for ``auto``."""

    def fits(tokens: int) -> bool:
        return fits_at_start(engine, layout, sparse, gpu_blocks, host_blocks, tokens)

    asked = engine.max_model_len
    if asked != "auto" and asked > model.max_context_tokens:
        raise InputError(
            f"{asked} tokens, but {model.name} is made for at most {model.max_context_tokens}",
            where="engine.max_model_len",
        )
    longest = model.max_context_tokens if asked == "auto" else asked
    if fits(longest):
        return longest
    low, high = 0, longest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    block_bytes = sparse.block_bytes if sparse else layout.block_bytes
    if low == 0:  # not for its length: no request at all runs in such a pool
        need = 1 if engine.version.startswith("0.30") else admission_blocks(engine, layout, sparse, 1)
        on_gpu = need > gpu_blocks - 1
        field = _gpu_field(engine) if on_gpu else _host_field(engine)
        short = (
            f"a GPU pool of {gpu_blocks:,} blocks of {block_bytes / GIB:,.4f} GiB, one of them unused; the "
            f"shortest request needs {need:,}"
            if on_gpu
            else f"a host pool of {host_blocks:,} blocks; the shortest request needs 3"
        )
        raise PoolTooSmall(f"too small: {short}", where=f"engine.{field}" if field else "model")
    if asked != "auto":
        need = admission_blocks(engine, layout, sparse, asked)
        host = f" and {host_blocks:,} host blocks" if sparse else ""
        raise PoolTooSmall(
            f"one request of {asked:,} tokens needs {need:,} GPU blocks "
            f"({need * block_bytes / GIB:.2f} GiB); the pool has {max(0, gpu_blocks - 1):,} free "
            f"({gpu_blocks * block_bytes / GIB:.2f} GiB){host}; "
            f"the estimated maximum length is {low:,}",
            where="engine.max_model_len",
        )
    return low
