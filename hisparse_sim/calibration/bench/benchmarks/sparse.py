"""Sparse attention itself: scoring by the indexer, selection, attention over the selected rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.calibration.bench.abi import BLOCK_TOKENS
from hisparse_sim.calibration.bench.checks.sparse import scores_of
from hisparse_sim.calibration.bench.kernels import Attention, Indexer, Topk
from hisparse_sim.calibration.bench.operations import KEY_PAGE_BYTES, fill_key_pages, fill_latent_rows
from hisparse_sim.calibration.bench.points import Ground, Point, calls_for

CONTEXTS = (131_072, 1 << 20, 32_768, 8_192, 65_536, 262_144, 524_288, 16_384)
BATCHES = (1, 64, 16, 4)
MOST_KEYS = 16 << 20
K = 2048


def indexers(ground: Ground) -> Iterator[Point]:
    """Scores against context, batch and heads; keys from pages all over a pool of 2 GB."""
    library = ground.gpu
    pages_in_pool = (MOST_KEYS + (1 << 20)) // BLOCK_TOKENS
    keys = library.empty(pages_in_pool * KEY_PAGE_BYTES)
    library.run(fill_key_pages(keys))
    for context in CONTEXTS:
        for batch in (b for b in BATCHES if b * context <= MOST_KEYS):
            for heads in (32, 64):
                with library.scope():
                    read = batch * context * (128 + 4)
                    pages = context // BLOCK_TOKENS
                    calls = calls_for(4e-6 + read / 3.5e12, most=16)
                    order = ground.random.permutation(pages_in_pool)
                    # The next call's pages follow this one's, so that they rotate through the pool.
                    tables = order[np.arange(calls * batch * pages) % pages_in_pool]
                    lengths = np.full(batch, context)
                    indexer = Indexer(
                        library, lengths, tables.reshape(calls, batch, pages), heads=heads, stride=context
                    )
                    ctas = max(1, min(pages, 5 * ground.device.sms // batch))
                    yield Point(
                        {"context": context, "batch": batch, "heads": heads, "ctas": ctas},
                        [indexer.op(keys, ctas=ctas, call=call) for call in range(calls)],
                        calls,
                        floor=ground.floor(hbm_bytes=read, fp8_flop=2 * 128 * heads * batch * context),
                    )


def selections(ground: Ground) -> Iterator[Point]:
    """Top 2048 against context, batch and how the scores lie; the scores are warm, as behind an indexer."""
    library = ground.gpu
    for kind in ("normal", "top_last", "uniform", "equal"):
        for context in CONTEXTS:
            for batch in (b for b in BATCHES if b * context <= MOST_KEYS // 4):
                with library.scope():
                    row = scores_of(ground.random, kind, context)
                    scores = np.stack(
                        [np.roll(row, 997 * i if kind != "top_last" else 0) for i in range(batch)]
                    )
                    memory = library.put(scores)
                    topk = Topk(library, np.full(batch, context), stride=context, k=K)
                    for ctas in sorted({1, max(1, min(context // 8192, 2 * ground.device.sms // batch))}):
                        calls = calls_for(10e-6 + context / ctas * 0.2e-9, most=16)
                        yield Point(
                            {"scores": kind, "context": context, "batch": batch, "ctas": ctas, "k": K},
                            [topk.op(memory.address, ctas=ctas)] * calls,
                            calls,
                            floor=ground.floor(hbm_bytes=4 * batch * context),
                            cold=False,
                        )


def attentions(ground: Ground) -> Iterator[Point]:
    """Attention over selected rows against batch, heads and rows; rows from all over a pool of 2 GB."""
    library = ground.gpu
    pool_rows = (2 << 30) // 656
    pool = library.empty(pool_rows * 656)
    library.run(fill_latent_rows(pool))
    plan = [(64, 2048), (128, 2048), (16, 2048), (64, 1024), (64, 512), (128, 512)]
    for heads, k in plan:
        for batch in (64, 1, 16, 128, 8, 32, 256, 4, 2):
            with library.scope():
                tiles = -(-heads // 64)
                splits = max(1, min(k // 64, ground.device.sms // (batch * tiles)))
                calls = calls_for(15e-6 + batch * tiles * k * 45e-9 / ground.device.sms, most=16)
                rows = ground.random.integers(0, pool_rows, (calls, batch, k))
                memory = library.put(rows.astype(np.int32))
                attention = Attention(library, requests=batch, heads=heads, k=k, splits=splits)
                yield Point(
                    {"kernel": "mma_sync", "batch": batch, "heads": heads, "k": k, "splits": splits},
                    [attention.op(pool, memory.address + 4 * call * batch * k) for call in range(calls)],
                    calls,
                    floor=ground.floor(
                        hbm_bytes=batch * k * 656, bf16_flop=2 * batch * heads * k * (576 + 512)
                    ),
                )
