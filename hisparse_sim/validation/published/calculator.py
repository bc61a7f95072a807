"""vLLM's interactive HiSparse concurrency calculator, whose arithmetic ``estimate`` imitates on demand.

Published: the page on vllm.ai that came with the blog of 2026-09-08. Its constants were read off the page,
so agreement shows a faithful copy, not a good model.
"""

from __future__ import annotations

from collections.abc import Sequence

from hisparse_sim.errors import HiSparseError
from hisparse_sim.estimate.calculator import page_answer
from hisparse_sim.scenario.catalogue import list_nodes, load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.validation.published.comparison import Comparison
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import Values, count, maybe, positive, text

STEM = "calculator_vllm"
COLUMNS = {
    "gpu": text,
    "tp": positive,
    "dp": positive,
    "context_tokens": positive,
    "baseline": count,
    "hisparse": count,
    "min_host_gib": maybe(count),
}


def comparisons(rows: Sequence[Values], place: str) -> list[Comparison]:
    """One a row."""
    return [_comparison(row) for row in rows]


def _comparison(row: Values) -> Comparison:
    gpu, tokens = row["gpu"], row["context_tokens"]
    case = f"{gpu} tp{row['tp']} dp{row['dp']} {tokens:,} tokens"

    def lines(_: object) -> list[Row]:
        figures = [("without", "concurrency", "baseline"), ("with HiSparse", "concurrency", "hisparse")]
        figures += (
            [("with HiSparse", "min_host_gib", "min_host_gib")] if row["min_host_gib"] is not None else []
        )
        try:
            engine = EngineSpec(kv_cache_dtype="fp8", tp=row["tp"], dp=row["dp"])
            page = page_answer(load_model("glm-5.3"), load_node(_node(gpu)), engine, tokens)
        except HiSparseError as error:
            return [Row(STEM, f"{case}, {how}", m, row[c], None, note=str(error)) for how, m, c in figures]
        found = {"baseline": page.resident, "hisparse": page.hisparse, "min_host_gib": page.min_host_gib}
        return [Row(STEM, f"{case}, {how}", m, row[c], found[c]) for how, m, c in figures]

    return Comparison((), lines)


def _node(gpu: str) -> str:
    """The shipped node of this GPU: eight of it, or what there is."""
    name = gpu.lower().replace(" ", "")
    return next((n for n in sorted(list_nodes(), key=lambda n: n[0] != "8") if name in n), f"8x{name}")
