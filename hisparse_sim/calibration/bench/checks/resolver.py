"""Checks of the resolver: exact LRU, step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench import oracles
from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS
from hisparse_sim.calibration.bench.checks.workbench import Bench
from hisparse_sim.calibration.bench.gpu import HOST
from hisparse_sim.calibration.bench.kernels import Resolver
from hisparse_sim.calibration.bench.operations import GatherShape, fill
from hisparse_sim.locality.hot_buffer import HotBuffer


def random_tables(
    random: np.random.Generator, *, requests: int, blocks: int, hot_rows: int, resident: float
) -> tuple[list[oracles.Tables], int, int]:
    """Tables of requests with ``blocks`` pages each, and how many GPU and host blocks there are.

    No block is used twice; ``resident`` is the share of pages that are on the GPU.
    """
    hot_blocks = hot_rows // BLOCK_TOKENS
    gpu_blocks = requests * (blocks + hot_blocks) + 3
    gpu, host = random.permutation(gpu_blocks), random.permutation(requests * blocks)
    tables = []
    for request in range(requests):
        mine = gpu[request * (blocks + hot_blocks) : (request + 1) * (blocks + hot_blocks)]
        on_gpu = random.random(blocks) < resident
        tables.append(
            oracles.Tables(
                host=host[request * blocks : (request + 1) * blocks].astype(np.int32),
                resident=np.where(on_gpu, mine[:blocks], -1).astype(np.int32),
                hot=mine[blocks:].astype(np.int32),
            )
        )
    return tables, gpu_blocks, requests * blocks


def check_resolver(b: Bench) -> None:
    """Exact LRU over many steps: metadata, lists and, fused or split, the rows themselves."""
    cases: list[tuple[int, int, int, float, int]]  # requests, k, hot rows, resident, steps
    if b.full:
        cases = [
            (3, 2048, 4096, 0.5, 12),
            (2, 2048, 8192, 0.0, 8),
            (1, 2048, 2048, 0.0, 6),
            (40, 512, 1024, 0.2, 3),
        ]
    else:
        cases = [(2, 96, 256, 0.5, 5), (1, 64, 64, 0.0, 4), (1, 40, 1152, 1.0, 2), (1, 1100, 1152, 0.1, 3)]
    for requests, k, hot_rows, resident, steps in cases:
        for row_bytes in (0, 656):
            check_resolver_case(b, requests, k, hot_rows, resident, steps, row_bytes)


def check_resolver_case(
    b: Bench, requests: int, k: int, hot_rows: int, resident: float, steps: int, fused_bytes: int
) -> None:
    size = f"{requests} requests, k {k}, {hot_rows} hot rows, {resident:.0%} resident"
    what = f"resolver, {size}, fused {fused_bytes}"
    row_bytes, context = 656, 4 * hot_rows
    tables, gpu_blocks, host_blocks = random_tables(
        b.random, requests=requests, blocks=context // BLOCK_TOKENS, hot_rows=hot_rows, resident=resident
    )
    host = b.gpu.empty(host_blocks * BLOCK_TOKENS * row_bytes, HOST)
    b.gpu.run([fill(host, seed=9)])
    host_rows = b.gpu.read(host, np.uint8, (host_blocks * BLOCK_TOKENS, row_bytes))
    gpu = b.guarded(gpu_blocks * BLOCK_TOKENS * row_bytes)
    gpu_rows = b.poisoned((gpu_blocks * BLOCK_TOKENS, row_bytes), np.uint8)
    resolver = Resolver(b.gpu, tables, k=k, hot_rows=hot_rows, allocate=b.guarded)
    buffers = [HotBuffer.empty(hot_rows) for _ in range(requests)]
    shape = GatherShape(ctas=2)
    totals = np.zeros(3, np.uint64)
    selected = np.full((requests, k), -1)
    for step in range(steps):
        for request in range(requests):
            selected[request] = next_selection(b.random, selected[request], context, keep=0.7)
        positions = resolver.put_selection(selected)
        ops = [resolver.op(positions, row_bytes=fused_bytes, gpu_pool=gpu, host_pool=host)]
        if not fused_bytes:
            ops.append(resolver.gather(shape, gpu, host, row_bytes))
        b.gpu.run(ops)
        results = [
            oracles.resolve(s.astype(np.int32), t, h)
            for s, t, h in zip(selected, tables, buffers, strict=True)
        ]
        here = f"{what}, step {step}"
        _same_lists(b, resolver, results, here)
        for result in results:
            totals += np.array([result.resident, result.hits, len(result.miss_sources)], np.uint64)
            gpu_rows[result.miss_targets] = host_rows[result.miss_sources]
        owners = b.gpu.read(resolver.owners, np.int32, (requests, hot_rows))
        lru = b.gpu.read(resolver.lru, np.int16, (requests, hot_rows))
        b.same(owners, np.stack([h.owners for h in buffers]), f"{here}: owners")
        b.same(lru, np.stack([h.order for h in buffers]), f"{here}: LRU order")
    b.same(b.gpu.read(resolver.totals, np.uint64, 3), totals, f"{what}: totals")
    b.same(b.content(gpu, np.uint8, gpu_rows.shape, what), gpu_rows, f"{what}: rows of the GPU pool")


def _same_lists(b: Bench, resolver: Resolver, results: list[oracles.Resolved], what: str) -> None:
    shape = (resolver.requests, resolver.k)
    rows, sources, targets, counts = (
        b.content(memory, np.int32, dims, what)
        for memory, dims in (
            (resolver.rows, shape),
            (resolver.miss_sources, shape),
            (resolver.miss_targets, shape),
            (resolver.miss_counts, shape[:1]),
        )
    )
    for request, result in enumerate(results):
        misses = len(result.miss_sources)
        b.same(rows[request], result.rows, f"{what}: rows")
        b.same(counts[request], np.array(misses), f"{what}: number of misses")
        b.same(sources[request, :misses], result.miss_sources, f"{what}: host rows to fetch")
        b.same(targets[request, :misses], result.miss_targets, f"{what}: GPU rows to fetch to")


def next_selection(
    random: np.random.Generator, last: NDArray[np.int64], context: int, *, keep: float
) -> NDArray[np.int64]:
    """A selection of different positions: some of the last one's, others new, now and then none (-1)."""
    k = len(last)
    kept = last[(last >= 0) & (random.random(k) < keep)]
    fresh = np.setdiff1d(random.permutation(context)[: 2 * k], kept)
    chosen = random.permutation(np.concatenate([kept, random.permutation(fresh)]))[:k]
    chosen = np.concatenate([chosen, np.full(k - len(chosen), -1)])
    chosen[random.random(k) < 0.03] = -1
    return chosen
