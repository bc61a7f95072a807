"""The resolver in its steady state: alone, with the gather behind it, and fused with it.

A slice is one decode step over many layers, each with state of its own, so that with the L2 emptied ahead
no layer finds its metadata there, as in production. The selections of all steps are made beforehand
with exactly the wanted number of misses, and the GPU's own count must agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS, Op
from hisparse_sim.calibration.bench.gpu import HOST, Memory
from hisparse_sim.calibration.bench.kernels import Resolver
from hisparse_sim.calibration.bench.operations import GatherShape
from hisparse_sim.calibration.bench.oracles import Tables
from hisparse_sim.calibration.bench.points import Ground, Point
from hisparse_sim.locality.hot_buffer import HotBuffer

K = 2048
LAYERS = 64
STEPS = 19
"""Three to warm up, and sixteen that are timed."""
CONTEXT = 1 << 16
"""Positions a request: each step's misses are new ones, so all steps together must fit."""
ROW_BYTES = 656

MOST_ROWS = 1 << 15
"""Rows a call that are fetched at most: more only takes longer, in proportion."""

BATCHES = (1, 16, 64, 4, 128, 8, 32, 2, 256)


@dataclass(frozen=True)
class Steps:
    """Selections [STEPS, K] of one request, the hot buffer it starts from, and what a step counts."""

    selected: NDArray[np.int64]
    held: NDArray[np.int64]
    """Positions in the slots before the first step, oldest first."""
    resident_pages: NDArray[np.bool_]
    resident: int
    hits: int
    misses: int


@lru_cache(maxsize=64)
def steady_steps(misses: int, hot_rows: int, resident: float) -> Steps:
    """Steps with so many misses each, and a share of ``resident`` rows on pages that are on the GPU."""
    random = np.random.default_rng(misses * 7 + hot_rows)
    pages = np.arange(CONTEXT // BLOCK_TOKENS)
    resident_pages = np.zeros(len(pages), bool)
    # A share of pages; few, so that there is room for the misses of all steps.
    resident_pages[: int(len(pages) * min(resident, 0.25))] = True
    on_gpu = np.flatnonzero(np.repeat(resident_pages, BLOCK_TOKENS))
    others = random.permutation(np.flatnonzero(~np.repeat(resident_pages, BLOCK_TOKENS)))
    from_gpu = round(K * resident)
    hits = K - from_gpu - misses
    if hits < 0:
        raise ValueError("more misses than rows that are not resident")
    held, fresh = others[:hot_rows], others[hot_rows:]
    if len(fresh) < misses * STEPS:
        raise ValueError("the context does not hold so many misses")
    buffer = HotBuffer(held.copy(), np.arange(hot_rows))
    selected = np.empty((STEPS, K), dtype=np.int64)
    for step in range(STEPS):
        again = random.choice(buffer.owners, hits, replace=False)
        new = fresh[step * misses : (step + 1) * misses]
        there = random.choice(on_gpu, from_gpu, replace=False) if from_gpu else on_gpu[:0]
        selected[step] = random.permutation(np.concatenate([again, new, there]))
        _, missed = buffer.resolve(selected[step][~resident_pages[selected[step] // BLOCK_TOKENS]])
        assert missed.sum() == misses
    return Steps(selected, held, resident_pages, from_gpu, hits, misses)


def gather_shape(requests: int) -> GatherShape:
    """The grid of vLLM's gather kernel: up to 8 CTAs a request, about 64 in all (PR #53781)."""
    return GatherShape(ctas=min(8, max(1, 64 // requests)))


def resolvers(ground: Ground) -> Iterator[Point]:
    """Against kernel, batch, misses, buffer size and the share of resident rows."""
    library = ground.gpu
    host = library.empty(ground.host_bytes, HOST)
    gpu = library.empty(1 << 30)
    kernels = ("split", "fused", "split_gather")
    main = [(k, b, m, 4096, 0.0) for m in (41, 410, 2, 205, 2048) for k in kernels for b in BATCHES]
    sizes = [(k, b, m, 8192, 0.0) for m in (41, 410) for b in (1, 16, 64, 128) for k in kernels]
    partly = [("split", b, m, 4096, r) for r, m in ((0.5, 41), (1.0, 0)) for b in BATCHES]
    every = [("split", b, m, h, 0.0) for m in (0, 10, 20, 102, 1024) for h in (4096, 8192) for b in BATCHES]
    for kernel, batch, misses, hot_rows, resident in [*main[:54], *partly, *sizes, *main[54:], *every]:
        if kernel != "split" and batch * misses > MOST_ROWS:
            continue
        with library.scope():
            yield make_point(ground, host, gpu, kernel, batch, misses, hot_rows, resident)


def make_point(
    ground: Ground,
    host: Memory,
    gpu: Memory,
    kernel: str,
    batch: int,
    misses: int,
    hot_rows: int,
    resident: float,
) -> Point:
    """One point: its state on the GPU, its steps, and the check of the counts."""
    steps = steady_steps(misses, hot_rows, resident)
    resolver = _resolver(ground, host, gpu, steps, batch, hot_rows)
    selected = np.broadcast_to(steps.selected[:, None], (STEPS, batch, K))
    positions = resolver.put_selection(selected)
    ops: list[Op] = []
    for step in range(STEPS):
        for layer in range(LAYERS):
            fused = ROW_BYTES if kernel == "fused" else 0
            ops.append(
                resolver.op(
                    positions,
                    call=step,
                    layer=layer,
                    row_bytes=fused,
                    gpu_pool=gpu,
                    host_pool=host,
                    on_slice=step,
                )
            )
            if kernel == "split_gather":
                ops.append(resolver.gather(gather_shape(batch), gpu, host, ROW_BYTES, on_slice=step))

    def verify(slices: int) -> str:
        found = ground.gpu.read(resolver.totals, np.uint64, 3)
        wanted = np.array([steps.resident, steps.hits, steps.misses], np.uint64)
        wanted *= np.uint64(slices * LAYERS * batch)
        return "" if (found == wanted).all() else f"the GPU counted {found}, not {wanted}"

    metadata = batch * (hot_rows * (4 + 2 + 2) + K * 8)
    moved = 0 if kernel == "split" else batch * misses * ROW_BYTES
    return Point(
        {
            "kernel": kernel,
            "batch": batch,
            "misses": misses,
            "hot_rows": hot_rows,
            "resident": resident,
            "k": K,
            "row_bytes": ROW_BYTES,
        },
        ops,
        LAYERS,
        floor=ground.floor(hbm_bytes=metadata, link_bytes=moved),
        slices=STEPS,
        warmup=3,
        launches=STEPS - 3,
        verify=verify,
    )


def _resolver(ground: Ground, host: Memory, gpu: Memory, steps: Steps, batch: int, hot_rows: int) -> Resolver:
    """Tables that spread requests over both pools; they may share host blocks, which are only read."""
    pages, hot_blocks = CONTEXT // BLOCK_TOKENS, hot_rows // BLOCK_TOKENS
    host_blocks, gpu_blocks = (pool.nbytes // (BLOCK_TOKENS * ROW_BYTES) for pool in (host, gpu))
    shuffled = ground.random.permutation(host_blocks)
    tables = []
    for request in range(batch):
        at = (request * pages + np.arange(pages)) % host_blocks
        hot = (request * hot_blocks + np.arange(hot_blocks)) % gpu_blocks
        tables.append(
            Tables(
                host=shuffled[at].astype(np.int32),
                resident=np.where(steps.resident_pages, np.arange(pages), -1).astype(np.int32),
                hot=hot.astype(np.int32),
            )
        )
    blocks = np.stack([t.host for t in tables])
    owners = blocks[:, steps.held // BLOCK_TOKENS] * BLOCK_TOKENS + steps.held % BLOCK_TOKENS
    return Resolver(ground.gpu, tables, k=K, hot_rows=hot_rows, layers=LAYERS, owners=owners)
