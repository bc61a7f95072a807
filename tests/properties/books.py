"""The pools' books, counted again from the requests: who refers to which block, and where pages are."""

from __future__ import annotations

import numpy as np

from hisparse_sim.memory.offload import OffloadMemory
from hisparse_sim.memory.pool import HashedBlocks
from hisparse_sim.memory.residency import HiSparseMemory
from hisparse_sim.memory.residency_v030 import HiSparseMemoryV030
from hisparse_sim.memory.resident import ResidentMemory
from hisparse_sim.scheduler.request import Request, Status

Memory = ResidentMemory | HiSparseMemory | HiSparseMemoryV030
Ids = np.ndarray


def counted(ids: list[Ids], size: int) -> Ids:
    return np.bincount(np.concatenate([np.empty(0, dtype=np.int64), *ids]), minlength=size)


def referenced(blocks: HashedBlocks, holders: list[Ids]) -> int:
    """How many blocks are referenced; each must be, once for each holder."""
    ref = blocks.ref.a
    assert (ref == counted(holders, len(ref))).all()
    return int((ref > 0).sum())


# -- blocks --------------------------------------------------------------------------------------


def check_blocks(memory: Memory, requests: list[Request]) -> None:
    """In each pool the blocks that somebody uses and the free ones are all there are."""
    states = [r.memory for r in requests if r.memory is not None]
    if isinstance(memory, ResidentMemory):
        used = referenced(memory.blocks, [s.blocks[: s.named] for s in states])
        assert memory.gpu.free + used + memory.unnamed == memory.gpu.total
        if isinstance(memory, OffloadMemory):
            store = memory.store
            assert store.free + int((store._state.a > 0).sum()) == store.total
    else:
        old = isinstance(memory, HiSparseMemoryV030)
        index, host, copies = (scattered if old else in_order)(memory, states)
        hot = sum(s.hot_blocks for s in states)
        used = referenced(memory.index, index) + hot
        ref = memory.copies.ref.a
        assert (ref == counted(copies, len(ref))).all()
        used += memory.sizes.resident_groups * int((ref > 0).sum())
        assert memory.gpu.free + used == memory.gpu.total
        assert memory.host_pool.free + referenced(memory.host, host) == memory.host_pool.total
    assert memory.gpu.free >= 0


def in_order(memory: HiSparseMemory, states: list) -> tuple[list[Ids], list[Ids], list[Ids]]:
    """Holders of indexer blocks, host blocks and GPU copies; 0.33 writes back and gives up in page order."""
    moving = [w for w in memory.writebacks if not w.state.alive]
    detached = {id(w.state): w.state.detached for w in moving if len(w.state.detached)}
    held = [s.copy[s.unpinned_to : s.pages] for s in states]
    return (
        [s.index[: s.pages] for s in states],
        [s.host[: s.pages] for s in states]
        + [w.state.host[w.first : w.end] for w in moving]
        + list(detached.values()),
        [h[h >= 0] for h in held] + [w.state.copy[w.first : w.end] for w in moving],
    )


def scattered(memory: HiSparseMemoryV030, states: list) -> tuple[list[Ids], list[Ids], list[Ids]]:
    """The same for 0.30, where each page has a state of its own."""
    moving = memory.writebacks
    hosts = [s.host[: s.pages] for s in states]
    copies = [s.copy[: s.pages] for s in states]
    given_up = [s.valid[: s.pages] & ~s.held[: s.pages] for s in states]
    return (
        [s.index[: s.pages] for s in states],
        [h[h >= 0] for h in hosts] + [w.state.host[w.pages] for w in moving],
        [c[(c >= 0) & ~g] for c, g in zip(copies, given_up, strict=True)]
        + [w.state.copy[w.pages] for w in moving],
    )


# -- pages ---------------------------------------------------------------------------------------


def check_pages(memory: Memory, requests: list[Request]) -> None:
    """No page is gone from the GPU before the host has it, nor are the two last ones of a request."""
    for r in requests:
        s = r.memory
        if s is None:
            continue
        if isinstance(memory, ResidentMemory):
            assert r.status is not Status.RUNNING or s.pages * 64 >= r.computed
            continue
        here = s.copy[: s.pages] >= 0
        if isinstance(memory, HiSparseMemory):
            assert 0 <= s.unpinned_to <= s.ready <= s.planned <= s.pages
            assert s.published <= s.ready
            on_host = np.arange(s.pages) < s.ready
            given_up = np.arange(s.pages) < s.unpinned_to
        else:
            on_host = s.valid[: s.pages]
            given_up = on_host & ~s.held[: s.pages]
            assert (s.host[: s.pages][on_host] >= 0).all()
        assert (here | on_host).all()
        assert not (here & given_up)[max(s.pages - 2, 0) :].any()
        assert s.host_only == int((~here).sum())
        assert s.unpinned == int((here & given_up).sum())
        assert s.hot_blocks in (0, memory.hot_blocks)
        if s.host_only or s.unpinned:
            assert s.hot_blocks  # where it reads them from
    if isinstance(memory, OffloadMemory):
        # A chunk that is being loaded is not evicted.
        loading = [job.content for job in memory.jobs if job.load]
        pins = memory.store._pins.a
        assert (pins == counted(loading, len(pins))).all()
        assert all((memory.store._state.a[ids] > 0).all() for ids in loading)
