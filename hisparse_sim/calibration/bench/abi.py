"""The structures of ``csrc/ops.h``, field by field; every field is 8 bytes wide."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_double, c_int64, c_uint64

KINDS = (
    "null",
    "fill",
    "stream",
    "copy",
    "copy_pitched",
    "copy_batch",
    "segments",
    "gather",
    "gather_bulk",
    "resolve",
    "topk",
    "indexer",
    "attention",
)

STREAMS = 2
BLOCK_TOKENS = 64
"""Tokens a page: FlashMLA and the indexer's cache force it."""


def _struct(name: str, fields: str) -> type[ctypes.Structure]:
    """A structure of addresses (``*name``), integers (``name``) and doubles (``.name``)."""
    kinds = {"*": c_uint64, ".": c_double}
    members = [(field.lstrip("*."), kinds.get(field[0], c_int64)) for field in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


Fill = _struct("Fill", "*target chunk_bytes stride_bytes chunks keep ones seed")
Stream = _struct("Stream", "*target *source bytes direction ctas")
Copy = _struct("Copy", "*target *source bytes")
CopyPitched = _struct("CopyPitched", "*target *source target_pitch source_pitch width height")
CopyBatch = _struct("CopyBatch", "*targets *sources *sizes count")
Segments = _struct("Segments", "*target *source *target_offsets *source_offsets bytes count ctas")
Gather = _struct(
    "Gather",
    "*target *source *target_rows *source_rows *counts requests list row_bytes ctas threads rows_per_warp",
)
Resolve = _struct(
    "Resolve",
    "*selected *host_blocks *resident_blocks *hot_blocks *owners *lru *rows *miss_sources *miss_targets "
    "*miss_counts *totals requests k hot_rows blocks *gpu_pool *host_pool row_bytes",
)
Topk = _struct("Topk", "*scores *lengths *selected *histogram *counters *candidates requests stride k ctas")
Indexer = _struct(
    "Indexer",
    "*queries *weights *keys *blocks *lengths *scores requests heads blocks_per_request stride ctas",
)
Attention = _struct(
    "Attention",
    "*queries *pool *rows *output *lse *partial_output *partial_lse requests heads k splits .scale",
)
Timing = _struct("Timing", "slices launches warmup graphs .most_s *before")

_STRUCTS: dict[str, type[ctypes.Structure]] = {
    "fill": Fill,
    "stream": Stream,
    "copy": Copy,
    "copy_pitched": CopyPitched,
    "copy_batch": CopyBatch,
    "segments": Segments,
    "gather": Gather,
    "gather_bulk": Gather,
    "resolve": Resolve,
    "topk": Topk,
    "indexer": Indexer,
    "attention": Attention,
}


_NAMES = {kind: {name for name, *_ in struct._fields_} for kind, struct in _STRUCTS.items()}


class _Arguments(ctypes.Union):
    _fields_ = tuple(_STRUCTS.items())


class Op(ctypes.Structure):
    """One launch; ``arguments`` holds the structure that its kind says. ``keep``: what must outlive it."""

    keep: object

    _fields_ = [
        ("kind", c_int64),
        ("slice", c_int64),
        ("stream", c_int64),
        ("arguments", _Arguments),
    ]


class Device(ctypes.Structure):
    """What ``hisparse_open`` tells of a GPU."""

    _fields_ = [
        ("name", c_char * 256),
        ("uuid", c_char * 64),
        ("pci_bus", c_char * 64),
        ("major", c_int64),
        ("minor", c_int64),
        ("sms", c_int64),
        ("l2_bytes", c_int64),
        ("memory_bytes", c_int64),
        ("driver", c_int64),
        ("runtime", c_int64),
    ]


def op(kind: str, *, on_slice: int = 0, on_stream: int = 0, **fields: int | float) -> Op:
    """One operation of ``kind``; ``fields`` are those of its structure, all of them."""
    made = Op(KINDS.index(kind), on_slice, on_stream)
    if kind == "null":
        return made
    struct = _STRUCTS[kind]
    if fields.keys() != _NAMES[kind]:
        raise TypeError(f"{kind} wants {sorted(_NAMES[kind])}, got {sorted(fields)}")
    setattr(made.arguments, kind, struct(**fields))
    return made
