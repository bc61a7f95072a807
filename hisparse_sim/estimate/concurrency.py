"""How many requests of a given length run at once, in each mode, by the blocks they take.

A request is counted at its full length (prompt and output), so what is counted never has to be
preempted. vLLM admits by the prompt's length; the difference shows as growth during decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hisparse_sim.errors import PoolTooSmall
from hisparse_sim.memory.budget import PoolSizes, derived_kv_bytes, kv_pool_bytes, size_pools, steady_blocks
from hisparse_sim.memory.host import GIB, host_block_stride, host_pool, place
from hisparse_sim.memory.layout import HiSparseLayout, KVLayout, ceil_div, kv_layout
from hisparse_sim.memory.reserve import reserve_bytes
from hisparse_sim.scenario.engine import EngineSpec, Mode
from hisparse_sim.scenario.model import ModelSpec
from hisparse_sim.scenario.node import NodeSpec

Limit = Literal["weights", "hbm", "host_pool", "max_num_seqs", "unsupported"]

POOL_OVERHEAD_SHARE = 0.10
"""How far the reserve beside weights and KV may be off. On GLM-5.3, 8 x H200, the rule leaves 1 % more
KV than vLLM measured (0.25 of 15 GiB); other models' logs lie within about 1 GiB of 2 to 6."""


@dataclass(frozen=True, slots=True)
class Count:
    """Requests that one DP replica runs at once, and the resource that stops the next one.

    ``gpu`` and ``host`` are what each pool alone would hold (``host`` none without a host pool).
    ``stays_resident``: HiSparse requests this short keep all their pages on the GPU.
    """

    requests: int
    limit: Limit
    gpu: int = 0
    host: int | None = None
    stays_resident: bool = False


@dataclass(frozen=True, slots=True)
class ModePools:
    """One mode's pools on one replica: asked for counts at many lengths."""

    engine: EngineSpec
    layout: KVLayout
    sizes: PoolSizes | None
    """None: the engine does not start; ``why`` says what is missing."""
    why: Limit = "hbm"
    reason: str = ""

    @property
    def sparse(self) -> HiSparseLayout | None:
        """The HiSparse layout, in that mode."""
        return self.layout.hisparse if self.engine.mode == "hisparse" else None

    def count(self, tokens: int) -> Count:
        """How many requests of ``tokens`` in all run at once on a replica."""
        sizes = self.sizes
        if sizes is None:
            return Count(0, self.why)
        pages = ceil_div(tokens, sizes.block_size)
        free = sizes.num_gpu_blocks - 1
        if self.sparse is None:
            gpu, host, resident = free // pages, None, False
        else:
            gpu, resident = self._hisparse_gpu(tokens, self.sparse, sizes)
            host = (sizes.num_host_blocks - 1) // pages
            if pages + 2 > sizes.num_host_blocks and not self.engine.version.startswith("0.30"):
                host = 0
        held = gpu if host is None else min(gpu, host)
        if self.engine.max_num_seqs <= held:
            return Count(self.engine.max_num_seqs, "max_num_seqs", gpu, host, resident)
        limit: Limit = "host_pool" if host is not None and host < gpu else "hbm"
        return Count(held, limit, gpu, host, resident)

    def blocks_per_request(self, tokens: int) -> int:
        """GPU blocks that one more running request of ``tokens`` takes once it is under way."""
        if self.sparse is None:
            return ceil_div(tokens, self.layout.block_size)
        return steady_blocks(self.engine, self.layout, self.sparse, tokens)

    def admission(self, tokens: int) -> int:
        """GPU blocks that admitting a request of ``tokens`` sets aside, hot buffer included."""
        pages = ceil_div(tokens, self.layout.block_size)
        if self.sparse is None or self.sizes is None:
            return pages
        window = min(pages, self.sizes.admission_window_pages)
        return pages + self.sparse.resident_groups * window + self.sparse.hot_blocks

    def resident_share(self, tokens: int, requests: int) -> float:
        """Share of pages that the GPU still holds when ``requests`` run on a replica.

        Pages that HiSparse gave back stay readable in the free list until it is used up: what is left
        after indexer pages and hot buffers, over one block a page and resident group. vLLM's
        scheduler, replayed, held 1.00 / 0.54 / 0.23 / 0.07 at 1 / 8 / 16 / 32 requests of 86k tokens.
        """
        sizes, sparse = self.sizes, self.sparse
        if sizes is None or sparse is None or not requests:
            return 1.0
        pages = ceil_div(tokens, sizes.block_size)
        if self.count(tokens).stays_resident:
            return 1.0
        left = sizes.num_gpu_blocks - 1 - requests * (pages + sparse.hot_blocks)
        return max(0.0, min(1.0, left / (requests * pages * sparse.resident_groups)))

    def _hisparse_gpu(self, tokens: int, sparse: HiSparseLayout, sizes: PoolSizes) -> tuple[int, bool]:
        """(requests the GPU pool runs, whether they keep all pages).

        All but one are in the steady state, one is being admitted: vLLM's own steady-state formula.
        Requests shorter than the admission window keep their pages as long as the pool's watermark
        allows; for very short ones that takes fewer blocks than a hot buffer.
        """
        free = sizes.num_gpu_blocks - 1
        pages = ceil_div(tokens, sizes.block_size)
        first = self.admission(tokens)
        if first > free:
            return 0, False
        hot = 1 + (free - first) // steady_blocks(self.engine, self.layout, sparse, tokens)
        resident = 0
        if pages < sizes.admission_window_pages:
            resident = (free - sizes.transition_watermark_blocks) // (pages * (1 + sparse.resident_groups))
        return max(hot, resident), resident > hot


def mode_pools(model: ModelSpec, node: NodeSpec, engine: EngineSpec, mode: Mode) -> ModePools:
    """The pools of ``engine`` run in ``mode``, with the same bytes of KV whatever the mode.

    What does not fit becomes a count of 0 with its reason, or with SGLang, whose rules for sizes are its
    own, raises ``PoolTooSmall``; a host pool or offload that the node's memory does not hold raises
    ``Infeasible``, wrong settings raise ``InputError``.
    """
    layout = kv_layout(model, engine, node)
    in_mode = engine.model_copy(update={"mode": mode})
    if engine.kind == "sglang":
        from hisparse_sim.estimate.sglang import SGLangPools

        return SGLangPools(model, node, in_mode, size_pools(model, node, in_mode))
    if mode == "hisparse":
        reason = hisparse_refusal(model, node)
        if reason:
            return ModePools(in_mode, layout, None, "unsupported", reason)
    try:
        # An override in blocks or tokens is of the engine's own mode; bytes mean the same in all.
        kv_bytes = kv_pool_bytes(model, node, engine)
    except PoolTooSmall as error:
        fits = derived_kv_bytes(model, node, engine) > 0
        return ModePools(in_mode, layout, None, "hbm" if fits else "weights", error.message)
    fixed = {"available_kv_gib": kv_bytes / GIB, "num_gpu_blocks": None, "kv_tokens": None}
    try:
        sizes = size_pools(model, node, in_mode.model_copy(update=fixed))
    except PoolTooSmall as error:
        why: Limit = "host_pool" if _host_is_short(node, in_mode, layout) else "hbm"
        return ModePools(in_mode, layout, None, why, error.message)
    return ModePools(in_mode, layout, sizes)


def _host_is_short(node: NodeSpec, engine: EngineSpec, layout: KVLayout) -> bool:
    """Whether ``max_model_len``, or for ``auto`` any length, fails the start-up check of the host pool."""
    if engine.mode != "hisparse" or layout.hisparse is None:
        return False
    tokens = 1 if engine.max_model_len == "auto" else engine.max_model_len
    placement = place(node, engine)
    stride = host_block_stride(layout.hisparse, placement, engine)
    return ceil_div(tokens, layout.block_size) + 2 > host_pool(node, engine, placement) // stride


def hisparse_refusal(model: ModelSpec, node: NodeSpec) -> str:
    """Why HiSparse does not run this model on this node; empty when it does."""
    if model.attention != "dsa":
        return f"{model.name} has no sparse-attention indexer (index_topk), which HiSparse needs"
    if not node.hisparse:
        return f"HiSparse runs on NVIDIA GPUs only, {node.name} has {node.gpu.name}"
    return ""


def overhead_variants(
    model: ModelSpec, node: NodeSpec, engine: EngineSpec, mode: Mode
) -> tuple[ModePools, ModePools]:
    """The same pools with a reserve 10 % larger and 10 % smaller; unchanged when pool or reserve is given."""
    given = (engine.available_kv_gib, engine.num_gpu_blocks, engine.kv_tokens, engine.reserve_gib)
    if any(value is not None for value in given):
        same = mode_pools(model, node, engine, mode)
        return same, same
    reserve = reserve_bytes(model, engine, engine.tp or node.gpus) / GIB

    def at(share: float) -> ModePools:
        return mode_pools(model, node, engine.model_copy(update={"reserve_gib": reserve * share}), mode)

    return at(1 + POOL_OVERHEAD_SHARE), at(1 - POOL_OVERHEAD_SHARE)


def min_host_bytes(pools: ModePools, tokens: int, requests: int) -> int:
    """Host pool of a replica that holds ``requests`` of ``tokens``: their pages, the null block, and
    what the start-up check asks (one request and two pages)."""
    if pools.sizes is None or pools.sparse is None:
        return 0
    pages = ceil_div(tokens, pools.layout.block_size)
    blocks = max(requests * pages + 1, pages + 2)
    return blocks * pools.sizes.host_block_bytes


def kv_left_bytes(model: ModelSpec, node: NodeSpec, engine: EngineSpec) -> int:
    """Bytes a GPU gives to KV, derived or overridden; negative when the model does not fit."""
    try:
        return kv_pool_bytes(model, node, engine)
    except PoolTooSmall:
        return derived_kv_bytes(model, node, engine)
