"""The memory that an operation touches, from its arguments and the lists that they point to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import KINDS, Op

Touched = tuple[str, int, int]
"""What, its address, and its bytes."""


def array(address: int, dtype: Any, count: int) -> NDArray[Any]:
    """Emulated GPU memory is host memory."""
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=dtype)


def footprint(op: Op) -> Iterator[Touched]:
    """Every piece of memory that ``op`` reads or writes."""
    kind = KINDS[op.kind]
    if kind != "null":
        yield from globals()[f"_{kind}"](getattr(op.arguments, kind))


def _rows(what: str, pool: int, rows: NDArray[Any], row_bytes: int) -> Touched:
    rows = rows[rows >= 0]
    if rows.size == 0:
        return what, pool, 0
    return what, pool + int(rows.min()) * row_bytes, int(rows.max() - rows.min() + 1) * row_bytes


def _fill(f: Any) -> Iterator[Touched]:
    yield "target", f.target, (f.chunks - 1) * f.stride_bytes + f.chunk_bytes


def _stream(s: Any) -> Iterator[Touched]:
    yield "target", s.target, s.bytes
    yield "source", s.source, s.bytes


_copy = _stream


def _copy_pitched(c: Any) -> Iterator[Touched]:
    assert c.width <= min(c.target_pitch, c.source_pitch)
    yield "target", c.target, (c.height - 1) * c.target_pitch + c.width
    yield "source", c.source, (c.height - 1) * c.source_pitch + c.width


def _copy_batch(b: Any) -> Iterator[Touched]:
    targets, sources, sizes = (array(a, np.uint64, b.count) for a in (b.targets, b.sources, b.sizes))
    for target, source, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        yield "target", target, size
        yield "source", source, size


def _segments(s: Any) -> Iterator[Touched]:
    assert s.bytes % 16 == 0
    for base, offsets in ((s.target, s.target_offsets), (s.source, s.source_offsets)):
        yield "offsets", offsets, 8 * s.count
        where = array(offsets, np.int64, s.count)
        assert (where % 16 == 0).all()
        yield _rows("run", base, where // 16, 16)
        yield "last run", base + int(where.max()), s.bytes


def _gather(g: Any) -> Iterator[Touched]:
    assert g.list * g.requests > 0 and g.ctas > 0
    yield "counts", g.counts, 4 * g.requests
    counts = array(g.counts, np.int32, g.requests)
    assert (counts <= g.list).all()
    for what, pool, lists in (("target", g.target, g.target_rows), ("source", g.source, g.source_rows)):
        yield f"{what} rows", lists, 4 * g.requests * g.list
        rows = array(lists, np.int32, g.requests * g.list).reshape(g.requests, g.list)
        listed = rows[np.arange(g.list) < counts[:, None]]
        assert (listed >= 0).all()
        yield _rows(what, pool, listed, g.row_bytes)


_gather_bulk = _gather


def _resolve(r: Any) -> Iterator[Touched]:
    yield "selected", r.selected, 4 * r.requests * r.k
    for name in ("host_blocks", "resident_blocks"):
        yield name, getattr(r, name), 4 * r.requests * r.blocks
    yield "hot blocks", r.hot_blocks, 4 * r.requests * (r.hot_rows // 64)
    yield "owners", r.owners, 4 * r.requests * r.hot_rows
    yield "lru", r.lru, 2 * r.requests * r.hot_rows
    for name in ("rows", "miss_sources", "miss_targets"):
        yield name, getattr(r, name), 4 * r.requests * r.k
    yield "miss counts", r.miss_counts, 4 * r.requests
    yield "totals", r.totals, 24
    selected = array(r.selected, np.int32, r.requests * r.k)
    assert selected.max() < 64 * r.blocks
    owners = array(r.owners, np.int32, r.requests * r.hot_rows)
    order = array(r.lru, np.int16, r.requests * r.hot_rows).reshape(r.requests, r.hot_rows)
    assert (np.sort(order, axis=1) == np.arange(r.hot_rows)).all()
    assert (owners < 64 * (array(r.host_blocks, np.int32, r.requests * r.blocks).max() + 1)).all()
    for name, pool, count in (
        ("host_blocks", r.host_pool, r.requests * r.blocks),
        ("hot_blocks", r.gpu_pool, r.requests * (r.hot_rows // 64)),
    ):
        yield _rows(name, pool, array(getattr(r, name), np.int32, count), 64 * r.row_bytes)


def _topk(t: Any) -> Iterator[Touched]:
    assert array(t.lengths, np.int32, t.requests).max() <= t.stride
    yield "scores", t.scores, 4 * t.requests * t.stride
    yield "lengths", t.lengths, 4 * t.requests
    yield "selected", t.selected, 4 * t.requests * t.k
    yield "histogram", t.histogram, 4 * 2048 * t.requests
    yield "counters", t.counters, 16 * t.requests
    yield "candidates", t.candidates, 8 * t.requests * t.stride


def _indexer(x: Any) -> Iterator[Touched]:
    lengths = array(x.lengths, np.int32, x.requests)
    assert lengths.max() <= min(x.stride, 64 * x.blocks_per_request)
    yield "queries", x.queries, x.requests * x.heads * 128
    yield "weights", x.weights, 4 * x.requests * x.heads
    yield "blocks", x.blocks, 4 * x.requests * x.blocks_per_request
    yield "lengths", x.lengths, 4 * x.requests
    yield "scores", x.scores, 4 * x.requests * x.stride
    yield _rows("keys", x.keys, array(x.blocks, np.int32, x.requests * x.blocks_per_request), 64 * 132)


def _attention(a: Any) -> Iterator[Touched]:
    cells = a.requests * a.heads
    yield "queries", a.queries, 2 * cells * 576
    yield "rows", a.rows, 4 * a.requests * a.k
    yield "output", a.output, 2 * cells * 512
    yield "lse", a.lse, 4 * cells
    yield "partial output", a.partial_output, 4 * a.splits * cells * 512
    yield "partial lse", a.partial_lse, 4 * a.splits * cells
    yield _rows("pool", a.pool, array(a.rows, np.int32, a.requests * a.k), 656)
