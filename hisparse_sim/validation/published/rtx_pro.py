"""Decode throughput of SGLang's HiSparse on eight RTX PRO 6000.

Published: github.com/sgl-project/sglang/pull/33075, comment of 2026-08-02: GLM-class DSA, TP8, 32k in, 2k
out, hot buffer of 4,096 rows, prefill apart. Assumed: GLM-5.2 (its 744 GB of fp8 weights exceed the eight
GPUs, so NVFP4), fp8 KV, all history on the host, a mean context of 33,792 tokens; without HiSparse as many
requests run as the source says. That GPU's sparse attention is scaled from another's by bandwidth. Each
layer swaps its rows in for itself: the followers' replay (pull/34329) came days after the comment.
"""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.validation.published.comparison import Comparison
from hisparse_sim.validation.published.decode_steps import decode_tpot_s
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import Values, figure, positive

STEM = "hisparse_sglang_8xrtxpro6000_glm_32k2k"
COLUMNS = {
    "target_batch": positive,
    "baseline_tok_s": figure,
    "baseline_running": positive,
    "hisparse_tok_s": figure,
}
CONTEXT_TOKENS = 32_768 + 2_048 / 2
_MODELS = {"glm-5.2": "", "glm-5.1": "with an indexer in each layer"}
_ENGINE = {"kind": "sglang", "tp": 8, "ep": False, "kv_cache_dtype": "fp8"}
_HISPARSE = {
    "mode": "hisparse",
    "device_buffer_size": 4096,
    "host_to_device_ratio": 10,
    "disaggregation_mode": "decode",
}
_WHY = (
    "sparse attention of this GPU is not measured; the model is not named: low and high are GLM-5.1 and 5.2, "
    "followers' copies for themselves or replayed"
)


def comparisons(rows: Sequence[Values], place: str) -> list[Comparison]:
    """One a row."""
    return [Comparison((), lambda _, row=row: _rows(row)) for row in rows]  # type: ignore[misc]


def _rows(row: Values) -> list[Row]:
    batch, running = row["target_batch"], min(row["target_batch"], row["baseline_running"])
    return [
        _row(f"without, {batch} asked, {running} running", row["baseline_tok_s"], running, hisparse=False),
        _row(f"with HiSparse, {batch} running", row["hisparse_tok_s"], batch, hisparse=True),
    ]


def _row(case: str, published: float, batch: int, *, hisparse: bool) -> Row:
    ways = (False, True) if hisparse else (False,)
    found = [output_tok_s(m, batch, hisparse=hisparse, index_share=way) for m in _MODELS for way in ways]
    return Row(STEM, case, "output_tok_s", published, found[0], min(found), max(found), _WHY)


def output_tok_s(model: str, batch: int, *, hisparse: bool, index_share: bool = False) -> float:
    """Tokens per second of ``batch`` requests that decode."""
    engine = {**_ENGINE, **({**_HISPARSE, "index_share": index_share} if hisparse else {})}
    share = 0.0 if hisparse else 1.0
    tpot_s = decode_tpot_s(
        model, "8xrtxpro6000", batch, CONTEXT_TOKENS, weights="nvfp4", resident_share=share, engine=engine
    )
    return batch / tpot_s
