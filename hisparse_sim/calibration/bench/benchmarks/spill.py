"""Pages from the GPU's pool to the host's, in the layouts that vLLM uses for GLM-5.2 and 5.3.

On the GPU a page of 64 tokens lies in 20 blocks of the pool, one for each set of layers, with the layers
of a set side by side (2, then 19 times 4); on the host all 78 layers of a page lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS, Op
from hisparse_sim.calibration.bench.gpu import HOST
from hisparse_sim.calibration.bench.operations import copy, copy_batch, copy_pitched, fill, segments
from hisparse_sim.calibration.bench.points import Ground, Point, calls_for

SETS = (2, *(4,) * 19)
"""Layers of each set: the packing of hisparse_sim.memory.layout for 78 layers and 21 indexers."""
LAYERS = sum(SETS)
BLOCK_LAYERS = 5
"""A block of the pool, in pages of one layer of 656-byte rows: 209,920 bytes."""
QUEUE = 400
"""Copies issued one by one in a slice: what a stream's queue holds without making the host wait."""


class _Spill:
    """Both pools, and the runs of bytes of any page."""

    def __init__(self, ground: Ground, row_bytes: int) -> None:
        self.page = BLOCK_TOKENS * row_bytes
        self.block = BLOCK_LAYERS * self.page
        library = ground.gpu
        self.host = library.empty(ground.host_bytes, HOST)
        self.gpu = library.empty(4 << 30)
        self.staging = library.empty(1 << 30)
        library.run([fill(self.gpu)])
        self.host_pages = self.host.nbytes // (LAYERS * self.page)
        self.gpu_blocks = self.gpu.nbytes // self.block
        self._random = ground.random

    def sets(self, pages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets in the GPU's pool and the host's, and bytes, of every set of ``pages`` random pages."""
        blocks = self._random.choice(self.gpu_blocks, (pages, len(SETS)), replace=False)
        to = self._random.choice(self.host_pages, pages, replace=False)
        layers = np.array(SETS)
        before = np.cumsum(layers) - layers
        target = to[:, None] * LAYERS * self.page + before * self.page
        return (blocks * self.block).reshape(-1), target.reshape(-1), np.tile(layers * self.page, pages)

    def layers(self, pages: int) -> tuple[np.ndarray, np.ndarray]:
        """The same for every layer: all runs are one page of one layer."""
        source, target, nbytes = self.sets(pages)
        count = nbytes // self.page
        inside = np.concatenate([np.arange(c) for c in count]) * self.page
        return np.repeat(source, count) + inside, np.repeat(target, count) + inside


def spills(ground: Ground) -> Iterator[Point]:
    """Against the number of pages and the way they are moved."""
    for row_bytes in (656, 1152):
        with ground.gpu.scope():
            s = _Spill(ground, row_bytes)
            for pages in (p for p in (16, 1, 4, 64) if p <= s.host_pages):
                for kernel, ctas in _ways(pages):
                    with ground.gpu.scope():
                        yield _point(ground, s, row_bytes, pages, kernel, ctas)


def _ways(pages: int) -> Iterator[tuple[str, int]]:
    yield "batch", 0
    for ctas in (8, 32, 132):
        yield "sm", ctas
    yield "pack", 132
    yield "pitched", 0
    if pages * len(SETS) <= QUEUE:
        yield "set", 0
    if pages * LAYERS <= QUEUE:
        yield "layer", 0


def _point(ground: Ground, s: _Spill, row_bytes: int, pages: int, kernel: str, ctas: int) -> Point:
    nbytes = pages * LAYERS * s.page
    calls = calls_for(5e-6 + nbytes / 45e9, most=16) if kernel in ("sm", "pack") else 1
    ops = [op for _ in range(calls) for op in _ops(ground, s, pages, kernel, ctas)]
    return Point(
        {"kernel": kernel, "pages": pages, "row_bytes": row_bytes, "ctas": ctas, "bytes": nbytes},
        ops,
        calls,
        floor=ground.floor(link_bytes=nbytes),
        graphs=kernel in ("sm", "pack"),
    )


def _ops(ground: Ground, s: _Spill, pages: int, kernel: str, ctas: int) -> list[Op]:
    """``pages`` pages to host memory: copies of a layer, of a set, of a set over pages that lie evenly
    (pitched), all sets in one batch, by SM, or packed on the GPU for a single copy."""
    host, gpu = s.host.address, s.gpu.address
    if kernel == "layer":
        return [copy(host + int(t), gpu + int(f), s.page) for f, t in zip(*s.layers(pages), strict=True)]
    if kernel == "set":
        return [copy(host + int(t), gpu + int(f), int(n)) for f, t, n in zip(*s.sets(pages), strict=True)]
    if kernel == "batch":
        source, target, nbytes = s.sets(pages)
        return [copy_batch(host + target, gpu + source, nbytes)]
    if kernel == "pitched":
        return [_pitched(s, pages, i) for i in range(len(SETS))]
    source, target = s.layers(pages)
    if kernel == "sm":
        return [segments(ground.gpu, s.host, s.gpu, target, source, s.page, ctas=ctas)]
    packed = np.arange(len(source), dtype=np.int64) * s.page
    pack = segments(ground.gpu, s.staging, s.gpu, packed, source, s.page, ctas=ctas)
    return [pack, copy(host, s.staging.address, len(source) * s.page)]


def _pitched(s: _Spill, pages: int, which: int) -> Op:
    """One set of pages whose blocks follow one another, as in a pool that was empty."""
    first = which * pages * s.block
    to = sum(SETS[:which]) * s.page
    pitch = LAYERS * s.page
    return copy_pitched(
        s.host.address + to, pitch, s.gpu.address + first, s.block, SETS[which] * s.page, pages
    )


def mirrors(ground: Ground) -> Iterator[Point]:
    """Rows that one decode step wrote, to host memory, a launch a layer (vLLM's eager_host_mirror)."""
    library = ground.gpu
    host = library.empty(ground.host_bytes, HOST)
    gpu = library.empty(1 << 30)
    for row_bytes in (656, 1152):
        for rows in (1, 8, 64, 256):
            with library.scope():
                calls = 32
                ops = []
                for _ in range(calls):
                    source, target = (
                        ground.random.choice(pool.nbytes // row_bytes, rows, replace=False) * row_bytes
                        for pool in (gpu, host)
                    )
                    ops.append(segments(library, host, gpu, target, source, row_bytes, ctas=min(rows, 64)))
                yield Point(
                    {"rows": rows, "row_bytes": row_bytes},
                    ops,
                    calls,
                    floor=ground.floor(link_bytes=rows * row_bytes),
                )
