"""Launches, and copies over the host link by the copy engines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import Op, op
from hisparse_sim.calibration.bench.gpu import HOST, Memory
from hisparse_sim.calibration.bench.operations import copy, copy_batch
from hisparse_sim.calibration.bench.points import Ground, Point, calls_for

COPY_BYTES = [4096 << i for i in range(17)]
"""4 KiB to 256 MiB."""

ISSUES = 200
"""Calls issued in a row: fewer than a stream's queue holds, so that the host never waits."""


def launches(ground: Ground) -> Iterator[Point]:
    """Empty kernels: in graphs of several sizes, on a stream, and the host's time to issue one."""
    null = op("null")
    for nodes in (1, 16, 256):
        yield Point({"kernel": "graph", "launches": nodes}, [null] * nodes)
    yield Point({"kernel": "stream", "launches": 64}, [null] * 64, graphs=False)
    yield Point(
        {"kernel": "issue", "launches": 1},
        measure=partial(_issue, ground, [null] * ISSUES),
    )


def _issue(ground: Ground, ops: list[Op]) -> NDArray[np.float64]:
    return ground.gpu.issue(ops, repeats=15) / len(ops)


class _Pools:
    """A host pool and a GPU pool, and addresses that rotate through them."""

    def __init__(self, ground: Ground) -> None:
        size = min(ground.host_bytes, 1 << 30)
        self.host, self.gpu = ground.gpu.empty(size, HOST), ground.gpu.empty(size)
        self._next = {HOST: 0, 0: 0}

    def at(self, memory: Memory, nbytes: int) -> int:
        """The next ``nbytes`` of a pool, from its beginning again at its end."""
        begin = self._next[memory.space]
        if begin + nbytes > memory.nbytes:
            begin = 0
        self._next[memory.space] = begin + (nbytes + 4095) // 4096 * 4096
        return memory.address + begin

    def copy(self, direction: str, nbytes: int, *, on_stream: int = 0) -> Op:
        host, gpu = self.at(self.host, nbytes), self.at(self.gpu, nbytes)
        target, source = (gpu, host) if direction == "h2d" else (host, gpu)
        return copy(target, source, nbytes, on_stream=on_stream)


def copies(direction: str, ground: Ground) -> Iterator[Point]:
    """Pinned copies of one size, one way."""
    pools = _Pools(ground)
    for nbytes in (n for n in COPY_BYTES if 2 * n <= pools.host.nbytes):
        calls = calls_for(3e-6 + nbytes / 55e9)
        yield Point(
            {"bytes": nbytes},
            [pools.copy(direction, nbytes) for _ in range(calls)],
            calls,
            floor=ground.floor(link_bytes=nbytes),
        )


def copies_both(ground: Ground) -> Iterator[Point]:
    """Pinned copies both ways at once; ``bytes`` go each way."""
    pools = _Pools(ground)
    for nbytes in (n for n in COPY_BYTES if 4 * n <= pools.host.nbytes):
        calls = calls_for(3e-6 + nbytes / 40e9)
        ops = [pools.copy("h2d", nbytes) for _ in range(calls)]
        ops += [pools.copy("d2h", nbytes, on_stream=1) for _ in range(calls)]
        yield Point({"bytes": nbytes}, ops, calls, floor=ground.floor(link_bytes=nbytes))


def copy_issue(ground: Ground) -> Iterator[Point]:
    """The host's time to issue one copy, and one batch of copies."""
    pools = _Pools(ground)
    for direction in ("h2d", "d2h"):
        for nbytes in (656, 41_984, 262_144):
            single = [pools.copy(direction, nbytes) for _ in range(ISSUES)]
            yield Point(
                {"kernel": "single", "direction": direction, "bytes": nbytes, "count": 1},
                measure=partial(_issue, ground, single),
            )
            for count in (16, 256):
                batch = [_batch(pools, direction, nbytes, count)] * 4
                yield Point(
                    {"kernel": "batch", "direction": direction, "bytes": nbytes, "count": count},
                    measure=partial(_issue, ground, batch),
                )


def copy_batches(ground: Ground) -> Iterator[Point]:
    """The time of a whole batch of copies (cudaMemcpyBatchAsync)."""
    pools = _Pools(ground)
    for direction in ("h2d", "d2h"):
        for nbytes in (656, 41_984, 262_144):
            for count in (16, 256, 4096):
                if count * nbytes > pools.host.nbytes // 2:
                    continue
                yield Point(
                    {"direction": direction, "bytes": nbytes, "count": count},
                    [_batch(pools, direction, nbytes, count) for _ in range(4)],
                    4,
                    graphs=False,
                    launches=11,
                    floor=ground.floor(link_bytes=nbytes * count),
                )


def _batch(pools: _Pools, direction: str, nbytes: int, count: int) -> Op:
    host, gpu = (np.array([pools.at(m, nbytes) for _ in range(count)]) for m in (pools.host, pools.gpu))
    target, source = (gpu, host) if direction == "h2d" else (host, gpu)
    return copy_batch(target, source, nbytes)
