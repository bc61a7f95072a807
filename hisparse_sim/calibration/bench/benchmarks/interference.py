"""What two things cost each other when they run at once: one stream is timed, the other outlasts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS, Op
from hisparse_sim.calibration.bench.gpu import HOST
from hisparse_sim.calibration.bench.kernels import Attention, Indexer
from hisparse_sim.calibration.bench.operations import (
    KEY_PAGE_BYTES,
    GatherLists,
    GatherShape,
    copy,
    fill,
    fill_key_pages,
    fill_latent_rows,
    stream,
)
from hisparse_sim.calibration.bench.points import Ground, Point

PAIRS = (
    ("gather", "stream"),
    ("gather", "d2h"),
    ("gather", "attention"),
    ("gather", "indexer"),
    ("gather_bulk", "stream"),
    ("gather_bulk", "d2h"),
    ("d2h", "attention"),
    ("d2h", "stream"),
    ("h2d", "d2h"),
)
"""Each is timed beside the other, both ways, and alone."""

VICTIM_S = 1e-3
"""The timed stream runs about so long, and the other three times as long."""


def interferences(ground: Ground) -> Iterator[Point]:
    """Seconds of one call of ``kernel`` while ``beside`` runs (``none``: alone)."""
    loads = _loads(ground)
    alone = dict.fromkeys(name for pair in PAIRS for name in pair)
    meetings = [("none", name) for name in alone]
    meetings += [met for a, b in PAIRS for met in ((b, a), (a, b))]
    for beside, kernel in meetings:
        call, estimate_s = loads[kernel]
        calls = max(1, round(VICTIM_S / estimate_s))
        ops = [call(i, 0) for i in range(calls)]
        if beside != "none":
            other, other_s = loads[beside]
            # Slowed down itself, it takes longer still.
            ops += [other(i, 1) for i in range(max(1, round(3 * VICTIM_S / other_s)))]
        yield Point({"kernel": kernel, "beside": beside}, ops, calls, stream=0, launches=15)


Load = tuple[Callable[[int, int], Op], float]


def _loads(ground: Ground) -> dict[str, Load]:
    """Operations by name: from the number of a call and a stream, with about how long one takes."""
    library, random = ground.gpu, ground.random
    host = library.empty(ground.host_bytes, HOST)
    gpu, from_hbm, to_hbm = (library.empty(1 << 30) for _ in range(3))
    library.run([fill(host), fill(from_hbm)])
    half = host.nbytes // 2

    rows, lists_of = 4096, 16
    sources = random.integers(0, half // 656, (lists_of, 1, rows))
    targets = random.integers(0, (gpu.nbytes // 2) // 656, (lists_of, 1, rows))
    lists = GatherLists.put(library, targets, sources)

    chunk = 4 << 20
    copies = half // chunk - 1

    def gather(shape: GatherShape) -> Callable[[int, int], Op]:
        return lambda i, on: lists.op(shape, gpu, host, 656, call=i % lists_of, on_stream=on)

    def d2h(i: int, on: int) -> Op:
        return copy(
            host.address + half + i % copies * chunk, gpu.address + i % 100 * chunk, chunk, on_stream=on
        )

    def h2d(i: int, on: int) -> Op:
        return copy(
            gpu.address + (128 + i % 100) * chunk, host.address + i % copies * chunk, chunk, on_stream=on
        )

    batch, k = 64, 2048
    pool = library.empty((1 << 30) // 656 * 656)
    library.run(fill_latent_rows(pool))
    chosen = library.put(random.integers(0, pool.nbytes // 656, (batch, k)).astype(np.int32))
    attention = Attention(library, requests=batch, heads=64, k=k, splits=2)

    context = 65_536
    pages = batch * context // BLOCK_TOKENS
    keys = library.empty(pages * KEY_PAGE_BYTES)
    library.run(fill_key_pages(keys))
    tables = random.permutation(pages).reshape(1, batch, -1)
    indexer = Indexer(library, np.full(batch, context), tables, heads=32, stride=context)

    sms = int(ground.device.sms)
    return {
        "gather": (gather(GatherShape(ctas=64)), rows * 656 / 35e9),
        "gather_bulk": (gather(GatherShape("bulk", ctas=16, threads=32)), rows * 656 / 50e9),
        "d2h": (d2h, chunk / 55e9),
        "h2d": (h2d, chunk / 55e9),
        "stream": (
            lambda i, on: stream(2, to_hbm, from_hbm, ctas=2 * sms, on_stream=on),
            2 * (1 << 30) / 4e12,
        ),
        "attention": (lambda i, on: attention.op(pool, chosen.address, on_stream=on), 60e-6),
        "indexer": (lambda i, on: indexer.op(keys, ctas=2 * sms // batch, on_stream=on), 200e-6),
    }
