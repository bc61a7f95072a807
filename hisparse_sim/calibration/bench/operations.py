"""Operations with the memory they work on: what checks run and benchmarks time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS, Op, op
from hisparse_sim.calibration.bench.gpu import Library, Memory

ROW_BYTES = (576, 656, 1152)
"""A KV row in one layer: plain fp8; fp8 with scales and a bfloat16 rope part; bfloat16."""

KEY_PAGE_BYTES = BLOCK_TOKENS * (128 + 4)
"""A page of indexer keys: 64 x 128 e4m3, then 64 float scales."""

ALL = 0xFFFFFFFF
E4M3_WORDS = {"keep": 0xBFBFBFBF, "ones": 0}
"""Four random e4m3 codes below 2 in size: none is NaN, products stay small."""
BF16_WORDS = {"keep": 0x807F807F, "ones": 0x3F003F00}
"""Two random bfloat16 of 0.5 to 1, either sign."""
FLOAT_WORDS = {"keep": 0x007FFFFF, "ones": 0x3F000000}
"""A random float of 0.5 to 1."""


def fill(
    target: Memory,
    *,
    keep: int = ALL,
    ones: int = 0,
    seed: int = 1,
    offset: int = 0,
    chunk_bytes: int = 0,
    stride_bytes: int = 0,
) -> Op:
    """Random words over all of ``target``, or in chunks that begin every ``stride_bytes`` from ``offset``."""
    chunk = chunk_bytes or target.nbytes
    stride = stride_bytes or chunk
    return op(
        "fill",
        target=target.address + offset,
        chunk_bytes=chunk,
        stride_bytes=stride,
        chunks=(target.nbytes - offset - chunk) // stride + 1,
        keep=keep,
        ones=ones,
        seed=seed,
    )


def fill_latent_rows(target: Memory, *, seed: int = 1) -> list[Op]:
    """Random rows of 656 bytes: e4m3 codes, float scales, bfloat16."""
    parts = ((0, 512, E4M3_WORDS), (512, 16, FLOAT_WORDS), (528, 128, BF16_WORDS))
    return [
        fill(target, seed=seed, offset=offset, chunk_bytes=size, stride_bytes=656, **words)
        for offset, size, words in parts
    ]


def fill_key_pages(target: Memory, *, seed: int = 1) -> list[Op]:
    """Random pages of indexer keys."""
    parts = ((0, 64 * 128, E4M3_WORDS), (64 * 128, 256, FLOAT_WORDS))
    return [
        fill(target, seed=seed, offset=offset, chunk_bytes=size, stride_bytes=KEY_PAGE_BYTES, **words)
        for offset, size, words in parts
    ]


def stream(direction: int, target: Memory, source: Memory, *, ctas: int, nbytes: int = 0, **on: int) -> Op:
    """A pass over memory; ``direction`` 0 reads, 1 writes, 2 does both."""
    return op(
        "stream",
        target=target.address,
        source=source.address,
        bytes=nbytes or target.nbytes,
        direction=direction,
        ctas=ctas,
        **on,
    )


def copy(target: int, source: int, nbytes: int, **on: int) -> Op:
    """One cudaMemcpyAsync between addresses."""
    return op("copy", target=target, source=source, bytes=nbytes, **on)


def copy_pitched(
    target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, **on: int
) -> Op:
    """One cudaMemcpy2DAsync: ``height`` runs of ``width`` bytes."""
    return op(
        "copy_pitched",
        target=target,
        source=source,
        target_pitch=target_pitch,
        source_pitch=source_pitch,
        width=width,
        height=height,
        **on,
    )


def copy_batch(targets: NDArray[np.int64], sources: NDArray[np.int64], nbytes: int | NDArray[np.int64]) -> Op:
    """One cudaMemcpyBatchAsync of copies of ``nbytes``, all alike or each its own, between addresses."""
    arrays = [np.ascontiguousarray(a, dtype=np.uint64) for a in (targets, sources)]
    arrays.append(np.broadcast_to(np.asarray(nbytes, dtype=np.uint64), len(targets)).copy())
    made = op(
        "copy_batch",
        targets=arrays[0].ctypes.data,
        sources=arrays[1].ctypes.data,
        sizes=arrays[2].ctypes.data,
        count=len(targets),
    )
    made.keep = arrays  # the structure holds addresses only
    return made


def segments(
    library: Library,
    target: Memory,
    source: Memory,
    target_offsets: NDArray[np.int64],
    source_offsets: NDArray[np.int64],
    nbytes: int,
    *,
    ctas: int,
    **on: int,
) -> Op:
    """Runs of ``nbytes`` moved by an SM kernel, between offsets."""
    return op(
        "segments",
        target=target.address,
        source=source.address,
        target_offsets=library.put(target_offsets.astype(np.int64)).address,
        source_offsets=library.put(source_offsets.astype(np.int64)).address,
        bytes=nbytes,
        count=len(target_offsets),
        ctas=ctas,
        **on,
    )


@dataclass(frozen=True)
class GatherShape:
    """How a gather is launched. ``method``: ``loads`` by warps, ``bulk`` by cp.async.bulk."""

    method: str = "loads"
    ctas: int = 64
    threads: int = 512
    rows_per_warp: int = 1


@dataclass(frozen=True)
class GatherLists:
    """Lists of rows on the GPU for one call or several: ``length`` for each of ``requests``."""

    target_rows: Memory
    source_rows: Memory
    counts: Memory
    requests: int
    length: int

    @classmethod
    def put(
        cls,
        library: Library,
        target_rows: NDArray[Any],
        source_rows: NDArray[Any],
        counts: NDArray[Any] | None = None,
    ) -> GatherLists:
        """From arrays [..., requests, list]; whole lists unless ``counts`` [..., requests] says fewer."""
        *_, requests, length = target_rows.shape
        counts = np.full(target_rows.shape[:-1], length) if counts is None else counts
        put = (library.put(a.astype(np.int32)) for a in (target_rows, source_rows, counts))
        return cls(next(put), next(put), next(put), requests, length)

    def op(
        self, shape: GatherShape, target: Memory, source: Memory, row_bytes: int, *, call: int = 0, **on: int
    ) -> Op:
        """Fetch the rows of this call's lists from ``source`` to ``target``."""
        first = 4 * call * self.requests
        return op(
            "gather" if shape.method == "loads" else "gather_bulk",
            target=target.address,
            source=source.address,
            target_rows=self.target_rows.address + first * self.length,
            source_rows=self.source_rows.address + first * self.length,
            counts=self.counts.address + first,
            requests=self.requests,
            list=self.length,
            row_bytes=row_bytes,
            ctas=shape.ctas,
            threads=shape.threads,
            rows_per_warp=shape.rows_per_warp,
            **on,
        )
