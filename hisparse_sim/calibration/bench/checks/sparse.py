"""Checks of top-k (exact), the indexer and attention (against float64)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.calibration.bench import oracles
from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS
from hisparse_sim.calibration.bench.checks.workbench import Bench
from hisparse_sim.calibration.bench.kernels import SCALE, Attention, Indexer, Topk
from hisparse_sim.calibration.bench.operations import KEY_PAGE_BYTES, fill_key_pages, fill_latent_rows


def scores_of(random: np.random.Generator, kind: str, length: int) -> NDArray[np.float32]:
    """Scores [length] of a kind.

    ``uniform``, ``normal``, ``top_last`` (rising), ``equal``, with many ``ties``, or in ``groups`` of
    32 that fill the kernel's bins exactly.
    """
    group = random.permutation(length) // 32
    made: dict[str, Callable[[], NDArray[Any]]] = {
        "uniform": lambda: random.random(length),
        "normal": lambda: random.standard_normal(length),
        "top_last": lambda: np.arange(length) + random.random(length),
        "equal": lambda: np.full(length, 0.25),
        "ties": lambda: random.integers(-20, 20, length) / 4,
        "groups": lambda: (1 + group % 4 / 4) * 2.0 ** (group // 4 % 200 - 100),
    }
    return made[kind]().astype(np.float32)


def check_topk(b: Bench) -> None:
    """Values of the selection as a multiset, indices in range and all different; short rows padded."""
    k = 2048 if b.full else 64
    lengths = np.array([1, k - 1, k, k + 1, 5 * k + 3, 60 * k + 1])
    stride = int(-(-lengths.max() // 4) * 4)
    for kind in ("uniform", "normal", "top_last", "equal", "ties", "groups"):
        scores = np.full((len(lengths), stride), np.inf, np.float32)  # behind the end: must not be taken
        for row, length in zip(scores, lengths, strict=True):
            row[:length] = scores_of(b.random, kind, length)
        memory = b.gpu.put(scores)
        topk = Topk(b.gpu, lengths, stride=stride, k=k, allocate=b.guarded)
        for ctas in (1, 4, 4, 1):  # twice: the scratch must be left as it was
            what = f"top-k of {kind} scores, {ctas} CTAs a row"
            b.gpu.set(topk.selected, b.poison)
            b.gpu.run([topk.op(memory.address, ctas=ctas)])
            selected = b.content(topk.selected, np.int32, (len(lengths), k), what)
            for row, length, chosen in zip(scores, lengths, selected, strict=True):
                taken = min(k, length)
                chosen = np.sort(chosen)[::-1]
                b.same(chosen[taken:], np.full(k - taken, -1), f"{what}: padding of {length}")
                inside = (chosen[:taken] >= 0) & (chosen[:taken] < length)
                b.same(inside, np.ones(taken, bool), f"{what}: indices below {length}")
                b.same(np.diff(chosen[:taken]) < 0, np.ones(taken - 1, bool), f"{what}: indices differ")
                found = np.sort(row[np.clip(chosen[:taken], 0, length - 1)])
                b.same(found, np.sort(row[:length])[length - taken :], f"{what}: scores of {length}")


INDEXER_ERROR = 1e-3
"""Relative, against float64: fp8 tensor cores sum with about 14 bits (arXiv 2412.19437, section 3.3.2)."""

ATTENTION_ERROR = 5e-3
"""Relative, against float64 on the same rounded rows: weights and output are bfloat16 (8 bits)."""


def check_indexer(b: Bench) -> None:
    """Scores against float64; nothing is written behind a request's length."""
    lengths = np.array([1, 64, 1000, 8192 - 3]) if b.full else np.array([1, 130])
    pages = int(-(-lengths.max() // BLOCK_TOKENS))
    stride = pages * BLOCK_TOKENS
    keys = b.gpu.empty(len(lengths) * pages * KEY_PAGE_BYTES)
    b.gpu.run(fill_key_pages(keys, seed=21))
    page = b.gpu.read(keys, np.uint8, (len(lengths) * pages, KEY_PAGE_BYTES))
    blocks = b.random.permutation(len(page)).reshape(len(lengths), pages)
    for heads, ctas in ((64, 1), (32, 3)):
        what = f"indexer, {heads} heads, {ctas} CTAs"
        indexer = Indexer(b.gpu, lengths, blocks, heads=heads, stride=stride, allocate=b.guarded)
        b.gpu.run([indexer.op(keys, ctas=ctas)])
        scores = b.content(indexer.scores, np.float32, (len(lengths), stride), what)
        queries = b.gpu.read(indexer.queries, np.uint8, (len(lengths), heads, 128))
        weights = b.gpu.read(indexer.weights, np.float32, (len(lengths), heads))
        for r, length in enumerate(lengths):
            mine = page[blocks[r]]
            wanted = oracles.indexer_scores(
                queries[r],
                weights[r],
                mine[:, : 64 * 128].reshape(-1, 128)[:length],
                np.ascontiguousarray(mine[:, 64 * 128 :]).view(np.float32).reshape(-1)[:length],
            )
            b.close(scores[r, :length], wanted, INDEXER_ERROR, f"{what}, {length} tokens")
            rest = scores[r, length:].view(np.uint32)
            b.same(rest, b.poisoned(rest.shape, np.uint32), f"{what}: behind token {length}")


def check_attention(b: Bench) -> None:
    """Output and log-sum-exp against float64; some rows absent, one request without any."""
    pool_rows = 20_000 if b.full else 300
    pool = b.gpu.empty(pool_rows * 656)
    b.gpu.run(fill_latent_rows(pool, seed=31))
    keys = oracles.dequantised(b.gpu.read(pool, np.uint8, (pool_rows, 656)))
    cases = (
        ((64, 2048, 1), (128, 2048, 8), (16, 512, 3), (64, 100, 2))
        if b.full
        else ((64, 100, 2), (16, 200, 1))
    )
    for heads, k, splits in cases:
        what = f"attention, {heads} heads, {k} rows, {splits} shares"
        rows = np.stack([b.random.permutation(pool_rows)[:k] for _ in range(3)])
        rows[0, b.random.random(k) < 0.3] = -1
        rows[1] = -1
        attention = Attention(b.gpu, requests=3, heads=heads, k=k, splits=splits, allocate=b.guarded)
        b.gpu.run([attention.op(pool, b.gpu.put(rows.astype(np.int32)).address)])
        output = oracles.from_bf16(b.content(attention.output, np.uint16, (3, heads, 512), what))
        lse = b.content(attention.lse, np.float32, (3, heads), what)
        queries = oracles.from_bf16(b.gpu.read(attention.queries, np.uint16, (3, heads, 576)))
        for r in range(3):
            wanted, wanted_lse = oracles.attention(
                queries[r], keys[np.maximum(rows[r], 0)], rows[r] >= 0, SCALE
            )
            if (rows[r] < 0).all():
                b.same(output[r], wanted, f"{what}: output of nothing")
                b.same(lse[r], wanted_lse, f"{what}: log-sum-exp of nothing")
                continue
            b.close(output[r], wanted, ATTENTION_ERROR, what)
            b.close(lse[r], wanted_lse, 1e-3, f"{what}: log-sum-exp")
