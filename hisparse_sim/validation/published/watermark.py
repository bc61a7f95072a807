"""Preemptions with and without a watermark of free blocks.

Published: vLLM PR 44594, Qwen2.5-7B on one GB200, a pool of 299,584 tokens, 450 requests of about 1,000
and 5,000 tokens (each +-20 %) from 128 clients. The distribution within +-20 % is taken as uniform.
"""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.validation.published.comparison import Answer, Comparison, Run
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import Values, count, figure, share

STEM = "preemption_watermark_qwen7b_gb200"
COLUMNS = {
    "watermark": share,
    "preemptions": count,
    "output_tok_s": figure,
    "ttft_p50_s": figure,
    "itl_p99_ms": figure,
}
_SCENARIO = {
    "name": "watermark",
    "model": "qwen2.5-7b",
    "node": "1xgb200",
    "engine": {"mode": "resident", "tp": 1, "kv_tokens": 299_584, "max_num_seqs": 256},
    "workload": {
        "kind": "stream",
        "concurrency": 128,
        "requests": 450,
        "prompt_tokens": {"kind": "uniform", "low": 800, "high": 1200},
        "output_tokens": {"kind": "uniform", "low": 4000, "high": 6000},
    },
}
_WHY = "the host's share of a step with 60 to 128 requests is not in the profile"


def comparisons(rows: Sequence[Values], place: str) -> list[Comparison]:
    """One a row."""
    return [_comparison(row) for row in rows]


def _comparison(row: Values) -> Comparison:
    run = Run(_SCENARIO, (f"engine.watermark={row['watermark']:g}",))
    case = f"watermark {row['watermark']:g}"

    def lines(answers: Sequence[Answer]) -> list[Row]:
        (answer,) = answers
        if isinstance(answer, str):
            return [
                Row(STEM, case, metric, row[metric], None, note=answer)
                for metric in ("preemptions", "output_tok_s")
            ]
        return [
            Row(STEM, case, "preemptions", row["preemptions"], answer["preemptions"]),
            Row(STEM, case, "output_tok_s", row["output_tok_s"], answer["output_tokens_per_s"], note=_WHY),
        ]

    return Comparison((run,), lines)
