"""How large SGLang's pools are: device tokens, host tokens, and what one request may ask for.

Sources: sgl-project/sglang, files under python/sglang/srt as of autumn 2026: ``model_executor/
pool_configurator.py`` (bytes a token), ``mem_cache/allocator/hisparse.py`` and ``pool_host/mla.py`` (host
tokens = device tokens x ``host_to_device_ratio``), ``managers/hisparse_coordinator.py`` (hot buffers and
their tables), ``server_args.py`` (the static fraction). Everything is per rank, as in ``budget``.
"""

from __future__ import annotations

from hisparse_sim.errors import Infeasible, InputError, PoolTooSmall, UnsupportedModel
from hisparse_sim.memory.budget import PoolSizes, weights_per_gpu
from hisparse_sim.memory.host import GIB, place
from hisparse_sim.memory.layout import KVLayout, ceil_div, kv_layout, tensor_parallel
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

MIB = 2**20
CONTEXT_BYTES = int(2.29 * GIB)
"""What a rank has taken before it loads weights (CUDA, NCCL): eight RTX PRO 6000 of 97,887 MiB have 93.30 GiB
left (sglang issue 29562)."""

COPIED_WEIGHTS_BYTES = int(6.5 * GIB)
"""Of sparse-MLA weights, what TP ranks copy instead of sharding: GLM-5.3-FP8 loads 94.46 GiB a rank at TP8
(vllm-project/recipes PR 893) where its bytes spread evenly come to 87.97. vLLM's reserve contains it."""

HOST_RESERVE_BYTES = 10 * GIB
"""Host memory that a pool leaves free (HICACHE_HOST_MEMORY_RESERVE_BYTES)."""

INPUT_MARGIN_TOKENS = 6
"""A prompt is at least so much shorter than the pool (managers/utils.py, told in sglang issue 30401)."""


def buffer_pages(layout: KVLayout) -> int:
    """Pages of a full hot buffer: ``device_buffer_size`` and one for the newest token."""
    assert layout.hisparse is not None
    return layout.hisparse.hot_blocks_per_group + 1


def chunk_tokens(node: NodeSpec, engine: EngineSpec) -> int:
    """``chunked_prefill_size``, or SGLang's for a GPU of this memory."""
    if engine.chunked_prefill_size is not None:
        return engine.chunked_prefill_size
    memory = node.gpu.memory_bytes / MIB
    return 4096 if memory < 60_000 else 8192 if memory < 160_000 else 16384


def static_fraction(node: NodeSpec, engine: EngineSpec) -> float:
    """``mem_fraction_static``, or what server_args makes of chunk, graphs and parallelism.

    In MiB: 512 + 1.5 a token of the chunk + 2 a request of the largest graph (512, 256 below TP 4; 80 and 32
    on GPUs below 60 GB) + 1,024 x TP / 8; at least 10,240 on GPUs above 60 GB. Two GiB more with drafts.
    """
    if engine.mem_fraction_static is not None:
        return engine.mem_fraction_static
    memory = node.gpu.memory_bytes / MIB
    chunk = chunk_tokens(node, engine)
    tp = tensor_parallel(node, engine)
    graphs = (512 if tp >= 4 else 256) if memory > 60_000 else (80 if tp >= 4 else 32)
    reserved = 512 + max(chunk, 2048) * 1.5 + graphs * 2 + tp / 8 * 1024
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if engine.mtp:
        reserved += 2 * 1024
    return round((memory - reserved) / memory, 3)


def cell_bytes(model: ModelSpec, engine: EngineSpec, layout: KVLayout) -> int:
    """Bytes of HBM that a token of the device pool takes: its rows, and ``ratio`` tokens of indexer keys.

    Indexer keys are charged in every layer, followers too: 464,768 tokens of GLM-5.2 with 576-byte rows
    took 23.91 GiB on a rank (SemiAnalysisAI/InferenceX PR 2335), 78 x (576 + 132) bytes each.
    """
    ratio = engine.host_to_device_ratio if engine.mode == "hisparse" else 1
    return layout.num_layers * (layout.row_bytes + ratio * layout.indexer_row_bytes)


def metadata_bytes(model: ModelSpec, engine: EngineSpec, layout: KVLayout, sizes: PoolSizes) -> int:
    """Tables of the coordinator for each place of ``max_running_requests``, outside the static part.

    In each layer two int32 a buffer row and one int16 of LRU order, then an int64 a buffer row and an
    int64 a token of context: 5.9 MB a request of GLM-5.1 with 6,144 rows and a context of 131,072.
    """
    assert layout.hisparse is not None
    rows, page = layout.hisparse.hot_rows, layout.block_size
    context = engine.context_length or model.max_context_tokens
    each = layout.num_layers * (8 * (rows + page) + 2 * rows) + 8 * (rows + page) + 8 * (context + page)
    return each * places(model, engine, sizes)


def places(model: ModelSpec, engine: EngineSpec, sizes: PoolSizes) -> int:
    """``max_running_requests`` of one replica."""
    if engine.max_running_requests is not None:
        return engine.max_running_requests
    context = engine.context_length or model.max_context_tokens
    return min(max(int(sizes.logged_tokens / context * 512), 2048), 4096)


def size_sglang_pools(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> PoolSizes:
    """Size the pools and check what SGLang checks when it starts.

    ``num_gpu_blocks`` and ``num_host_blocks`` count pages and the padding page. Raises ``Infeasible`` when
    weights, a page or the host pools do not fit, ``UnsupportedModel`` for a model without an indexer.
    """
    if model.attention != "dsa":
        raise UnsupportedModel(
            f"{model.name} has no sparse-attention indexer (index_topk): kind sglang models such only",
            where="engine.kind",
        )
    placement = place(node, engine)
    layout = kv_layout(model, engine, node)
    hisparse = engine.mode == "hisparse"
    page = layout.block_size
    kv_bytes, cell = _kv_bytes(model, node, engine), cell_bytes(model, engine, layout)
    tokens = kv_bytes // cell
    if engine.max_total_tokens is not None:
        tokens = min(tokens, engine.max_total_tokens)
    pages = tokens // page
    buffer = buffer_pages(layout)
    if pages < (buffer if hisparse else 1):
        raise PoolTooSmall(
            f"{max(0, kv_bytes) / GIB:,.2f} GiB a GPU hold {max(0, pages) * page:,} tokens, and a request's "
            f"{'hot buffer' if hisparse else 'first page'} takes {(buffer if hisparse else 1) * page:,}",
            where=_field(engine),
        )
    host_pages = pages * engine.host_to_device_ratio if hisparse else 0
    host_page_bytes = page * layout.num_layers * layout.row_bytes if hisparse else 0
    host_bytes = host_pages * host_page_bytes
    pinned = host_bytes * placement.ranks_per_node
    if hisparse and pinned + HOST_RESERVE_BYTES > node.dram_bytes:
        raise Infeasible(
            f"{engine.host_to_device_ratio} x {pages * page:,} tokens are {host_bytes / GIB:,.1f} GiB a "
            f"rank and {pinned / GIB:,.0f} GiB on {placement.ranks_per_node} ranks, each with its own; "
            f"{node.name} has {node.dram_bytes / GIB:,.0f} GiB of host memory, 10 of which stay free",
            where="engine.host_to_device_ratio",
        )
    longest = _longest(model, engine, pages * page, host_pages * page)
    held = pages if not hisparse else min(host_pages, pages // buffer * ceil_div(longest, page))
    return PoolSizes(
        mode=engine.mode,
        block_size=page,
        block_bytes=page * cell,
        kv_bytes=pages * page * cell,
        num_gpu_blocks=pages + 1,
        num_host_blocks=host_pages + 1 if hisparse else 0,
        host_block_bytes=host_page_bytes,
        num_cpu_chunks=0,
        num_indexer_chunks=0,
        resident_groups=1 if hisparse else 0,
        hot_blocks_per_group=buffer if hisparse else 0,
        admission_window_pages=0,
        transition_watermark_blocks=0,
        max_model_len=longest,
        weights_bytes=weights_per_gpu(model, node, engine),
        reserve_bytes=CONTEXT_BYTES + COPIED_WEIGHTS_BYTES,
        host_pool_bytes=host_bytes,
        max_concurrency=held / ceil_div(longest, page),
        steady_concurrency=None,
        logged_tokens=pages * page,
    )


def _kv_bytes(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> int:
    """Static fraction of what is free before weights, less the weights (profile_available_bytes)."""
    free = node.gpu.memory_bytes - CONTEXT_BYTES
    weights = weights_per_gpu(model, node, engine) + COPIED_WEIGHTS_BYTES
    left = int(free * static_fraction(node, engine)) - weights
    if left <= 0:
        raise PoolTooSmall(
            f"{model.name} does not fit on {node.name}: {weights / GIB:.1f} GiB of weights a GPU, and "
            f"{static_fraction(node, engine):.3f} of {free / GIB:.1f} GiB free are static",
            where=_field(engine),
        )
    return left


def _field(engine: EngineSpec) -> str:
    given = [n for n in ("max_total_tokens", "mem_fraction_static") if getattr(engine, n) is not None]
    return f"engine.{given[0]}" if given else "model"


def _longest(model: ModelSpec, engine: EngineSpec, device_tokens: int, host_tokens: int) -> int:
    """Prompt and output of one request: what fits the device pool, where it is prefilled.

    With prefill elsewhere, what fits the host pool (sglang PR 28753). In one engine the host pool raises
    nothing (issue 30401; PRs 34345 and 37631, which would, are open).
    """
    asked = engine.context_length
    if asked is not None and asked > model.max_context_tokens:
        raise InputError(
            f"{asked} tokens, but {model.name} is made for at most {model.max_context_tokens}",
            where="engine.context_length",
        )
    held = host_tokens if engine.disaggregation_mode == "decode" else device_tokens
    return min(asked or model.max_context_tokens, held - INPUT_MARGIN_TOKENS)
