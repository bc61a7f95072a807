"""Checks of what only moves bytes: exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench import oracles
from hisparse_sim.calibration.bench.abi import Op
from hisparse_sim.calibration.bench.checks.workbench import Bench
from hisparse_sim.calibration.bench.gpu import HOST, GpuError, Memory
from hisparse_sim.calibration.bench.operations import (
    ROW_BYTES,
    GatherLists,
    GatherShape,
    copy,
    copy_batch,
    copy_pitched,
    fill,
    segments,
    stream,
)


def check_memory(b: Bench) -> None:
    """Fill, read, write and copy of GPU memory."""
    words = 1 << 22 if b.full else 1 << 12
    pattern = {"keep": 0x7FFF00FF, "ones": 0x100, "seed": 7}
    at = np.arange(words, dtype=np.int64)
    wanted = oracles.filled(at, **pattern)
    source, gaps = b.guarded(4 * words), b.guarded(4 * words)
    b.gpu.run([fill(source, **pattern), fill(gaps, **pattern, offset=0, chunk_bytes=64, stride_bytes=256)])
    b.same(b.content(source, np.uint32, (words,), "fill"), wanted, "fill")
    found = b.content(gaps, np.uint32, (words,), "fill with gaps")
    b.same(found, np.where(at % 64 < 16, wanted, b.poisoned((words,), np.uint32)), "fill with gaps")

    short = words - 4  # no whole number of the kernel's tiles
    vector = np.arange(short // 4)
    written = np.stack([vector, *(np.full(short // 4, n) for n in (1, 2, 3))], axis=1).reshape(-1)
    for direction, result in ((1, written), (2, wanted[:short])):
        target = b.guarded(4 * words)
        b.gpu.run([stream(direction, target, source, ctas=3, nbytes=4 * short)])
        found = b.content(target, np.uint32, (words,), "stream")
        b.same(found[:short], result.astype(np.uint32), f"stream in direction {direction}")
        b.same(found[short:], b.poisoned((4,), np.uint32), "behind the end of a stream")
    b.gpu.run([stream(0, source, source, ctas=3)])
    b.same(b.content(source, np.uint32, (words,), "read"), wanted, "memory that was read")


def check_copies(b: Bench) -> None:
    """Runs to host memory: one copy, a pitched copy, a batch of copies, and by SM."""
    run, count = (41_984, 61) if b.full else (656, 5)
    source = b.guarded(2 * run * count)
    b.gpu.run([fill(source, seed=3)])
    content = b.gpu.read(source, np.uint8, source.nbytes)
    pitch = run + 32
    sources = 2 * run * np.arange(count, dtype=np.int64)
    targets = pitch * np.arange(count, dtype=np.int64)[::-1]
    ways: dict[str, tuple[NDArray[np.int64], Callable[[Memory], list[Op]]]] = {
        "single copies": (
            targets,
            lambda to: [
                copy(to.address + int(t), source.address + int(s), run)
                for t, s in zip(targets, sources, strict=True)
            ],
        ),
        "pitched copy": (
            targets[::-1],
            lambda to: [copy_pitched(to.address, pitch, source.address, 2 * run, run, count)],
        ),
        "batch of copies": (
            targets,
            lambda to: [copy_batch(to.address + targets, source.address + sources, run)],
        ),
        "runs by SM": (targets, lambda to: [segments(b.gpu, to, source, targets, sources, run, ctas=2)]),
    }
    for what, (order, ops) in ways.items():
        target = b.guarded(pitch * count, HOST)
        try:
            b.gpu.run(ops(target))
        except GpuError as error:
            if error.fatal or what != "batch of copies":
                raise
            continue  # a CUDA or driver without batches, which then will not be timed either
        wanted = b.poisoned((target.nbytes,), np.uint8)
        for t, s in zip(order, sources, strict=True):
            wanted[t : t + run] = content[s : s + run]
        b.same(b.content(target, np.uint8, (target.nbytes,), what), wanted, what)


def check_gather(b: Bench) -> None:
    """Rows of all three sizes by loads and by bulk copies; lists of several lengths, empty and whole."""
    pool_rows, length = (1 << 16, 2048) if b.full else (600, 160)
    counts = np.array([0, 1, 33, length])
    shapes = [
        GatherShape("loads", ctas=1, threads=1024),
        GatherShape("loads", ctas=3, threads=512, rows_per_warp=4),
        GatherShape("bulk", ctas=1),
        GatherShape("bulk", ctas=3),
    ]
    for row_bytes in ROW_BYTES:
        host = b.gpu.empty(pool_rows * row_bytes, HOST)
        b.gpu.run([fill(host, seed=row_bytes)])
        rows = b.gpu.read(host, np.uint8, (pool_rows, row_bytes))
        sources = np.stack([b.random.permutation(pool_rows)[:length] for _ in counts])
        target_rows = len(counts) * length + 7
        targets = b.random.permutation(target_rows)[: len(counts) * length].reshape(len(counts), length)
        wanted = b.poisoned((target_rows, row_bytes), np.uint8)
        for request, count in enumerate(counts):
            wanted[targets[request, :count]] = rows[sources[request, :count]]
        lists = GatherLists.put(b.gpu, targets, sources, counts)
        for shape in shapes:
            target = b.guarded(wanted.nbytes)
            b.gpu.run([lists.op(shape, target, host, row_bytes)])
            what = f"{shape.method}, {shape.rows_per_warp} rows a warp, {row_bytes} bytes, {shape.ctas} CTAs"
            b.same(b.content(target, np.uint8, wanted.shape, what), wanted, what)
