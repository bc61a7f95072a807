"""Operations with the memory they work on: what checks run and benchmarks time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench import oracles
from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS, Op, op
from hisparse_sim.calibration.bench.library import Library, Memory

ROW_BYTES = (576, 656, 1152)
"""A KV row in one layer: plain fp8; fp8 with scales and a bfloat16 rope part; bfloat16."""

Allocate = Callable[[int], Memory]
"""Memory for an output; checks give guarded memory."""

KEY_PAGE_BYTES = BLOCK_TOKENS * (128 + 4)
"""A page of indexer keys: 64 x 128 e4m3, then 64 float scales."""

SCALE = 576**-0.5
"""Softmax scale of the attention checks and timings; its value changes no time."""

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


class Resolver:
    """Resolver state of ``layers`` layers on the GPU, each [requests, hot_rows], with one set of tables.

    ``tables`` has one entry a request. All layers begin alike: with ``owners`` [requests, hot_rows] in the
    slots, the first the oldest; empty without.
    """

    def __init__(
        self,
        library: Library,
        tables: list[oracles.Tables],
        *,
        k: int,
        hot_rows: int,
        layers: int = 1,
        owners: NDArray[Any] | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self.requests, self.k, self.hot_rows = len(tables), k, hot_rows
        self.blocks = len(tables[0].host)
        put = library.put
        self._library = library
        self._host, self._resident, self._hot = (
            put(np.stack([getattr(t, name) for t in tables]).astype(np.int32))
            for name in ("host", "resident", "hot")
        )
        owners = np.full((self.requests, hot_rows), -1) if owners is None else owners
        self.owners = library.repeat(owners.astype(np.int32), layers)
        self.lru = library.repeat(np.arange(hot_rows, dtype=np.int16), layers * self.requests)
        self.totals = put(np.zeros(3, np.uint64))
        allocate = allocate or library.empty
        out_bytes = 4 * self.requests * k
        self.rows, self.miss_sources, self.miss_targets = (allocate(out_bytes) for _ in range(3))
        self.miss_counts = allocate(4 * self.requests)

    def put_selection(self, selected: NDArray[Any]) -> Memory:
        """Positions [requests, k], -1 for none, on the GPU."""
        return self._library.put(selected.astype(np.int32))

    def op(
        self,
        selected: Memory,
        *,
        call: int = 0,
        layer: int = 0,
        row_bytes: int = 0,
        gpu_pool: Memory | None = None,
        host_pool: Memory | None = None,
        **on: int,
    ) -> Op:
        """One step of one layer; with ``row_bytes`` the fused kernel, which fetches the rows, too.

        ``call`` counts selections [requests, k] in ``selected``.
        """
        cell = layer * self.requests * self.hot_rows
        return op(
            "resolve",
            selected=selected.address + 4 * call * self.requests * self.k,
            host_blocks=self._host.address,
            resident_blocks=self._resident.address,
            hot_blocks=self._hot.address,
            owners=self.owners.address + 4 * cell,
            lru=self.lru.address + 2 * cell,
            rows=self.rows.address,
            miss_sources=self.miss_sources.address,
            miss_targets=self.miss_targets.address,
            miss_counts=self.miss_counts.address,
            totals=self.totals.address,
            requests=self.requests,
            k=self.k,
            hot_rows=self.hot_rows,
            blocks=self.blocks,
            gpu_pool=gpu_pool.address if gpu_pool else 0,
            host_pool=host_pool.address if host_pool else 0,
            row_bytes=row_bytes,
            **on,
        )

    def gather(
        self, shape: GatherShape, gpu_pool: Memory, host_pool: Memory, row_bytes: int, **on: int
    ) -> Op:
        """Fetch what the last ``op`` missed."""
        lists = GatherLists(self.miss_targets, self.miss_sources, self.miss_counts, self.requests, self.k)
        return lists.op(shape, gpu_pool, host_pool, row_bytes, **on)


class Topk:
    """Selection of ``k`` out of scores [requests, stride]."""

    BINS = 2048

    def __init__(
        self,
        library: Library,
        lengths: NDArray[Any],
        *,
        stride: int,
        k: int,
        allocate: Allocate | None = None,
    ) -> None:
        self.requests, self.stride, self.k = len(lengths), stride, k
        self._lengths = library.put(lengths.astype(np.int32))
        self._histogram = library.put(np.zeros((self.requests, self.BINS), np.uint32))
        self._counters = library.put(np.zeros((self.requests, 4), np.int32))
        self._candidates = library.empty(8 * self.requests * stride)
        self.selected = (allocate or library.empty)(4 * self.requests * k)

    def op(self, scores: int, *, ctas: int, **on: int) -> Op:
        """Select from the scores at this address; ``ctas`` a request."""
        return op(
            "topk",
            scores=scores,
            lengths=self._lengths.address,
            selected=self.selected.address,
            histogram=self._histogram.address,
            counters=self._counters.address,
            candidates=self._candidates.address,
            requests=self.requests,
            stride=self.stride,
            k=self.k,
            ctas=ctas,
            **on,
        )


class Indexer:
    """Scores of one query token a request over its pages of keys."""

    def __init__(
        self,
        library: Library,
        lengths: NDArray[Any],
        blocks: NDArray[Any],
        *,
        heads: int,
        stride: int,
        allocate: Allocate | None = None,
    ) -> None:
        self.requests, self.heads, self.stride = len(lengths), heads, stride
        self._blocks_per_request = blocks.shape[-1]  # [..., requests, pages]
        self._lengths = library.put(lengths.astype(np.int32))
        self._blocks = library.put(blocks.astype(np.int32))
        self.queries = library.empty(self.requests * heads * 128)
        self.weights = library.empty(4 * self.requests * heads)
        library.run([fill(self.queries, seed=11, **E4M3_WORDS), fill(self.weights, seed=12, **FLOAT_WORDS)])
        self.scores = (allocate or library.empty)(4 * self.requests * stride)

    def op(self, keys: Memory, *, ctas: int, call: int = 0, **on: int) -> Op:
        """Score all tokens; ``ctas`` a request; ``call`` counts tables of pages."""
        return op(
            "indexer",
            queries=self.queries.address,
            weights=self.weights.address,
            keys=keys.address,
            blocks=self._blocks.address + 4 * call * self.requests * self._blocks_per_request,
            lengths=self._lengths.address,
            scores=self.scores.address,
            requests=self.requests,
            heads=self.heads,
            blocks_per_request=self._blocks_per_request,
            stride=self.stride,
            ctas=ctas,
            **on,
        )


class Attention:
    """Attention of one query token a request over ``k`` selected rows of 656 bytes."""

    def __init__(
        self,
        library: Library,
        *,
        requests: int,
        heads: int,
        k: int,
        splits: int,
        allocate: Allocate | None = None,
    ) -> None:
        self.requests, self.heads, self.k, self.splits = requests, heads, k, splits
        allocate = allocate or library.empty
        cells = requests * heads
        self.queries = library.empty(2 * cells * 576)
        library.run([fill(self.queries, seed=13, **BF16_WORDS)])
        self.output, self.lse = allocate(2 * cells * 512), allocate(4 * cells)
        self._partial_output = library.empty(4 * splits * cells * 512)
        self._partial_lse = library.empty(4 * splits * cells)

    def op(self, pool: Memory, rows: int, **on: int) -> Op:
        """Attend to the rows whose numbers [requests, k] are at the address ``rows``."""
        return op(
            "attention",
            queries=self.queries.address,
            pool=pool.address,
            rows=rows,
            output=self.output.address,
            lse=self.lse.address,
            partial_output=self._partial_output.address,
            partial_lse=self._partial_lse.address,
            requests=self.requests,
            heads=self.heads,
            k=self.k,
            splits=self.splits,
            scale=SCALE,
            **on,
        )
