"""Rows fetched from host memory by the GPU itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.gpu import HOST, Memory
from hisparse_sim.calibration.bench.operations import GatherLists, GatherShape, fill
from hisparse_sim.calibration.bench.points import Ground, Point, calls_for

ROWS = (2048, 1, 8, 32, 128, 512, 8192, 32_768, 131_072)
"""Rows a call, those of most value first."""

SHAPES = {
    "sm": [
        GatherShape(ctas=64),
        GatherShape(ctas=8),
        GatherShape(ctas=1, threads=1024),
        GatherShape(ctas=132),
    ],
    "bulk": [GatherShape("bulk", ctas=c, threads=32) for c in (16, 4, 1, 64)],
    "sm4": [GatherShape(ctas=c, rows_per_warp=4) for c in (64, 8)],
}
"""``sm``: a warp a row, as vLLM's kernel; ``sm4``: four rows a warp in flight; ``bulk``: cp.async.bulk."""

PAGE_ROWS = 64


def gathers(ground: Ground) -> Iterator[Point]:
    """Against rows, row size, CTAs, kernel and locality, from a cold host pool."""
    library = ground.gpu
    host = library.empty(ground.host_bytes, HOST)
    library.run([fill(host)])
    gpu = library.empty(1 << 30)
    plan = [
        (kernel, shape, "random", row_bytes, rows, 1)
        for rows in ROWS
        for row_bytes in (656, 576, 1152)
        for kernel, shapes in SHAPES.items()
        for shape in shapes
    ]
    localities = [
        (kernel, SHAPES[kernel][0], locality, 656, rows, 1)
        for locality in ("sorted", "pages", "warm")
        for rows in (2048, 32_768)
        for kernel in ("sm", "bulk")
    ]
    # As vLLM launches it: ctas a request from how many requests there are.
    batches = [
        ("sm", GatherShape(ctas=min(8, max(1, 64 // requests))), "random", 656, requests * each, requests)
        for requests in (2, 8, 32, 64, 128)
        for each in (41, 205, 410)
    ]
    for kernel, shape, locality, row_bytes, rows, requests in [*plan[:30], *batches, *localities, *plan[30:]]:
        if rows > host.nbytes // row_bytes:
            continue  # a machine with little memory
        with library.scope():
            calls = calls_for(3e-6 + rows * row_bytes / 35e9)
            lists = _lists(ground, host, gpu, locality, row_bytes, rows, requests, calls)
            yield Point(
                {
                    "kernel": kernel,
                    "locality": locality,
                    "row_bytes": row_bytes,
                    "rows": rows,
                    "requests": requests,
                    "ctas": shape.ctas * requests,
                    "threads": shape.threads,
                },
                [lists.op(shape, gpu, host, row_bytes, call=call) for call in range(calls)],
                calls,
                cold=locality != "warm",
                floor=ground.floor(link_bytes=rows * row_bytes),
            )


def _lists(
    ground: Ground,
    host: Memory,
    gpu: Memory,
    locality: str,
    row_bytes: int,
    rows: int,
    requests: int,
    calls: int,
) -> GatherLists:
    pool = host.nbytes // row_bytes
    sources = np.stack([_some(ground.random, pool, rows, locality) for _ in range(calls)])
    # Targets rotate through more than the L2 holds, in an order of their own.
    slots = gpu.nbytes // row_bytes
    first = np.arange(calls)[:, None] * rows
    targets = (first + np.stack([ground.random.permutation(rows) for _ in range(calls)])) % slots
    shape = (calls, requests, rows // requests)
    return GatherLists.put(ground.gpu, targets.reshape(shape), sources.reshape(shape))


def _some(random: np.random.Generator, pool: int, rows: int, locality: str) -> NDArray[np.int64]:
    """Different rows of a pool: at random, the same in order, whole pages, or always the first ones."""
    if locality == "pages":
        first = random.choice(pool // PAGE_ROWS, rows // PAGE_ROWS, replace=False) * PAGE_ROWS
        return (first[:, None] + np.arange(PAGE_ROWS)).reshape(-1)
    if locality == "warm":
        return random.permutation(rows)
    chosen = random.choice(pool, rows, replace=False, shuffle=locality == "random")
    return np.sort(chosen) if locality == "sorted" else chosen
