"""The kernels of sparse decode with the state that they keep: resolver, selection, indexer, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench import oracles
from hisparse_sim.calibration.bench.abi import Op, op
from hisparse_sim.calibration.bench.gpu import Library, Memory
from hisparse_sim.calibration.bench.operations import (
    BF16_WORDS,
    E4M3_WORDS,
    FLOAT_WORDS,
    GatherLists,
    GatherShape,
    fill,
)

Allocate = Callable[[int], Memory]
"""Memory for an output; checks give guarded memory."""

SCALE = 576**-0.5
"""Softmax scale of the attention checks and timings; its value changes no time."""


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
