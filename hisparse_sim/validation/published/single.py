"""Time per token of a few clients, published with a model, a node and little else.

Prompt and output tokens are not stated beyond a window or a recipe; a table gives a low and a high prompt,
and the output that the published rates imply. vLLM's default is no expert parallelism, and no flag for it
is mentioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hisparse_sim.validation.published.comparison import Answer, Comparison, Run
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import Values, count, figure, positive, text

STEM = "single_request_tpot"
COLUMNS = {
    "engine": text,
    "model": text,
    "node": text,
    "clients": positive,
    "requests": positive,
    "prompt_tokens": positive,
    "prompt_tokens_high": positive,
    "output_tokens": positive,
    "mtp": count,
    "tokens_a_step": figure,
    "mean_tpot_ms": figure,
}


_VLLM = ({"mode": "resident", "kv_cache_dtype": "fp8"},)
_SGLANG = tuple({"kind": "sglang", "mode": "resident", "kv_cache_dtype": rows} for rows in ("auto", "fp8"))
"""What its rows are is not stated: its own choice for the GPU, bf16 on Hopper, comes first."""


def comparisons(rows: Sequence[Values], place: str) -> list[Comparison]:
    """One a row."""
    return [_comparison(row) for row in rows]


def _comparison(row: Values) -> Comparison:
    low, high = row["prompt_tokens"], row["prompt_tokens_high"]
    case = f"{row['model']} on {row['node']}, {row['engine']}, {row['clients']} clients"
    why = f"prompts not stated: {low:,} to {high:,} tokens" if high > low else ""
    engines = _SGLANG if row["engine"] == "SGLang" else _VLLM
    if len(engines) > 1:
        why = "; ".join(filter(None, [why, "KV rows not stated: bf16 to fp8"]))
    runs = tuple(Run(_scenario(row, n, e)) for n in dict.fromkeys((low, high)) for e in engines)

    def lines(answers: Sequence[Answer]) -> list[Row]:
        refused = [answer for answer in answers if isinstance(answer, str)]
        if refused:
            return [Row(STEM, case, "mean_tpot_ms", row["mean_tpot_ms"], None, note=refused[0])]
        found = [1000 * a["tpot_s"]["mean"] for a in answers if not isinstance(a, str)]
        several = len(found) > 1
        return [
            Row(
                STEM,
                case,
                "mean_tpot_ms",
                row["mean_tpot_ms"],
                found[0],
                min(found) if several else None,
                max(found) if several else None,
                why,
            )
        ]

    return Comparison(runs, lines)


def _scenario(row: Values, prompt_tokens: int, engine: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": "single",
        "model": row["model"],
        "node": row["node"],
        "engine": {"ep": False, "mtp": row["mtp"], **engine},
        "workload": {
            "kind": "stream",
            "concurrency": row["clients"],
            "requests": row["requests"],
            "prompt_tokens": prompt_tokens,
            "output_tokens": row["output_tokens"],
        },
    }
