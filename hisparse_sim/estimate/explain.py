"""Which limit binds, in words, and what one unit more of each resource would give."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.estimate.concurrency import Count, ModePools, mode_pools
from hisparse_sim.memory.host import GIB, place
from hisparse_sim.memory.layout import ceil_div
from hisparse_sim.scenario.engine import EngineSpec, Mode
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

MIN_BATCHED_TOKENS = 2048
"""Smallest token budget worth recommending: prefill chunks below it are mostly launch floors, and it is
vLLM's own fallback default."""

ENOUGH_SHARE = 0.95
"""A budget that gives this share of the most requests is not lowered further."""

HOST_STEP_GIB = 64


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change would give: requests over all replicas, and the exact slope behind the integer.

    ``per_unit`` is requests per unit of the resource; 0 where the resource does not bind, none where
    the change is a setting.
    """

    change: str
    requests: int
    gain: int
    per_unit: float | None


def limit_words(pools: ModePools, count: Count, tokens: int) -> str:
    """The binding limit as a sentence part."""
    engine, sizes, sparse = pools.engine, pools.sizes, pools.sparse
    if sizes is None:
        return pools.reason or "nothing fits"
    pages = ceil_div(tokens, sizes.block_size)
    if count.limit == "max_num_seqs":
        return f"max_num_seqs {engine.max_num_seqs}; memory holds {count.gpu}"
    if count.limit == "host_pool":
        gib = pages * sizes.host_block_bytes / GIB
        return (
            f"host pool: {sizes.host_pool_bytes / GIB:,.0f} GiB, {gib:,.2f} GiB a request; "
            f"the GPU pool would hold {count.gpu}"
        )
    if sparse is None:
        gib = pages * sizes.block_bytes / GIB
        return f"HBM: {sizes.kv_bytes / GIB:,.1f} GiB for KV, {gib:,.2f} GiB a request"
    free = sizes.num_gpu_blocks - 1
    if count.stays_resident:
        return f"HBM: requests this short stay on the GPU, {pages * (1 + sparse.resident_groups)} blocks each"
    if not count.requests:
        need = pools.admission(tokens)
        return f"HBM: admitting one request takes {need:,} blocks, the pool has {free:,}"
    each = pools.blocks_per_request(tokens)
    return (
        f"HBM: {free:,} blocks, {each:,} a request ({pages / each:.0%} indexer keys, "
        f"{sparse.hot_blocks / each:.0%} hot buffer)"
    )


def gains(
    model: ModelSpec, node: NodeSpec, engine: EngineSpec, mode: Mode, tokens: int, pools: ModePools
) -> list[Gain]:
    """Requests that one GiB of HBM more, 64 GiB of host pool more, or the smallest hot buffer gives."""
    if pools.sizes is None:
        return []
    now = pools.count(tokens)
    dp = engine.dp
    found: list[Gain] = []

    def add(change: str, changed: EngineSpec, per_unit: float | None, machine: NodeSpec = node) -> None:
        more = mode_pools(model, machine, changed, mode).count(tokens).requests
        found.append(Gain(change, more * dp, (more - now.requests) * dp, per_unit))

    sizes = pools.sizes
    kv_gib = sizes.kv_bytes / GIB
    fixed = {"num_gpu_blocks": None, "kv_tokens": None}
    slope = GIB / sizes.block_bytes / pools.blocks_per_request(tokens) if now.limit == "hbm" else 0.0
    more_hbm = engine.model_copy(update={**fixed, "available_kv_gib": kv_gib + 1})
    add("+1 GiB of HBM per GPU", more_hbm, slope * dp)
    if now.limit == "max_num_seqs":
        twice = 2 * engine.max_num_seqs
        add(
            f"max_num_seqs {engine.max_num_seqs} -> {twice}",
            engine.model_copy(update={"max_num_seqs": twice}),
            None,
        )
    if pools.sparse is None:
        return found
    pages = ceil_div(tokens, sizes.block_size)
    host_slope = GIB / (pages * sizes.host_block_bytes) if now.limit == "host_pool" else 0.0
    more_host = engine.model_copy(
        update={"host_pool_gib": sizes.host_pool_bytes / GIB + HOST_STEP_GIB, "indexer_offload_gib": 0.0}
    )
    # What-if: memory that the node may not have yet.
    copies = max(1, place(node, engine).ranks_per_node)
    room = node.dram_bytes + int(2 * HOST_STEP_GIB * GIB * copies / 0.9)
    add(
        f"+{HOST_STEP_GIB} GiB of host pool",
        more_host,
        host_slope * dp,
        node.model_copy(update={"dram_bytes": room}),
    )
    least = (engine.mtp + 1) * model.index_topk
    if pools.sparse.hot_rows > least:
        fewer = engine.model_copy(update={"hot_rows": least})
        add(f"hot rows {pools.sparse.hot_rows} -> {least} (more misses)", fewer, None)
    return found


def recommended_batched_tokens(
    model: ModelSpec, node: NodeSpec, engine: EngineSpec, tokens: int
) -> tuple[int, int]:
    """(``max_num_batched_tokens``, requests over all replicas) for HiSparse at this length.

    Admission sets aside a window of pages for the tokens in flight in every resident group, so a
    smaller budget leaves room for requests, and a larger one prefills faster: the largest power of two
    (or the present value) that gives 95 % of what the smallest sensible budget gives.
    """

    def requests(budget: int) -> int:
        changed = engine.model_copy(update={"max_num_batched_tokens": budget})
        return mode_pools(model, node, changed, "hisparse").count(tokens).requests

    present = engine.max_num_batched_tokens
    counts = {present: requests(present)}
    budget = 1 << (present - 1).bit_length() >> 1
    while budget >= MIN_BATCHED_TOKENS:
        counts[budget] = requests(budget)
        budget //= 2
    enough = ENOUGH_SHARE * max(counts.values())
    best = max(b for b, n in counts.items() if n >= enough)
    return best, counts[best] * engine.dp
