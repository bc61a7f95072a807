"""What the kernels must compute, in numpy: exact where bits are moved, float64 where numbers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS
from hisparse_sim.locality.hot_buffer import HotBuffer

Ints = NDArray[np.int32]


def filled(word: NDArray[np.int64], *, keep: int, ones: int, seed: int) -> NDArray[np.uint32]:
    """The words that a ``fill`` operation leaves at these word indices."""
    x = (word.astype(np.uint64) + np.uint64(seed) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    with np.errstate(over="ignore"):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x ^= x >> np.uint32(shift)
            x *= np.uint32(factor)
        x ^= x >> np.uint32(16)
    return x & np.uint32(keep) | np.uint32(ones)


def e4m3_values() -> NDArray[np.float64]:
    """The value of each of the 256 codes (OCP 8-bit floating point, E4M3: no infinity, two NaN)."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    size[(exponent == 15) & (fraction == 7)] = np.nan
    return np.where(code & 0x80, -size, size)


def to_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Bit patterns of the nearest bfloat16, ties to even; for finite values."""
    word = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((word + 0x7FFF + (word >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """The values of bfloat16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Tables:
    """Blocks of a request: ``host`` and ``resident`` (-1: not) by page, ``hot`` by run of slots."""

    host: Ints
    resident: Ints
    hot: Ints


@dataclass(frozen=True)
class Resolved:
    """What one step of one request must give: GPU rows, the fetches in order, and counts."""

    rows: NDArray[np.int64]
    miss_sources: NDArray[np.int64]
    miss_targets: NDArray[np.int64]
    resident: int
    hits: int


def resolve(selected: Ints, tables: Tables, buffer: HotBuffer) -> Resolved:
    """One step of the resolver; ``buffer`` moves on."""
    valid = selected >= 0
    page, inside = np.maximum(selected, 0) // BLOCK_TOKENS, np.maximum(selected, 0) % BLOCK_TOKENS
    on_gpu = valid & (tables.resident[page] >= 0)
    asked = valid & ~on_gpu
    host_rows = tables.host[page].astype(np.int64) * BLOCK_TOKENS + inside
    slots, missed = buffer.resolve(host_rows[asked])
    hot_rows = tables.hot[slots // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + slots % BLOCK_TOKENS
    rows = np.full(len(selected), -1, dtype=np.int64)
    rows[on_gpu] = tables.resident[page[on_gpu]].astype(np.int64) * BLOCK_TOKENS + inside[on_gpu]
    rows[asked] = hot_rows
    return Resolved(
        rows=rows,
        miss_sources=host_rows[asked][missed],
        miss_targets=hot_rows[missed],
        resident=int(on_gpu.sum()),
        hits=int((~missed).sum()),
    )


def indexer_scores(
    queries: NDArray[np.uint8],
    weights: NDArray[np.float32],
    keys: NDArray[np.uint8],
    scales: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Scores [tokens] of queries [heads, 128], weights [heads], keys [tokens, 128], scales [tokens].

    ``scale * sum over heads of weight * max(0, q . k)``: the lightning indexer of DeepSeek-V3.2
    (arXiv 2512.02556, section 2.1).
    """
    values = e4m3_values()
    products = values[keys] @ values[queries].T
    return np.asarray(scales * (np.maximum(products, 0.0) @ weights.astype(np.float64)))


def dequantised(rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Keys [rows, 576] of rows of 656 bytes: 512 e4m3, a float scale for each 128, 64 bfloat16.

    The 512 are rounded to bfloat16, as the tensor cores get them. Row format: FlashMLA's README.
    """
    codes = rows[:, :512]
    scales = np.ascontiguousarray(rows[:, 512:528]).view(np.float32)
    latent = (e4m3_values()[codes] * np.repeat(scales, 128, axis=1).astype(np.float64)).astype(np.float32)
    rope = from_bf16(np.ascontiguousarray(rows[:, 528:]).view(np.uint16))
    return np.concatenate([from_bf16(to_bf16(latent)), rope], axis=1)


def attention(
    queries: NDArray[np.float64], keys: NDArray[np.float64], valid: NDArray[np.bool_], scale: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Output [heads, 512] and log-sum-exp [heads] of queries [heads, 576] over keys [rows, 576].

    The value of a row is the first 512 of its key. Without a valid row: zeros and minus infinity.
    """
    if not valid.any():
        return np.zeros((len(queries), 512)), np.full(len(queries), -np.inf)
    scores = np.where(valid, queries @ keys.T * scale, -np.inf)
    most = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(axis=1, keepdims=True)
    return weights @ keys[:, :512] / total, (most + np.log(total))[:, 0]
