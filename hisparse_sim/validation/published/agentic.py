"""Thirteen-turn conversations of a coding agent: HiSparse and the native offloading connector.

Published: vLLM blog 2026-09-08, figure openhands-pareto-occupancy. Nothing was fitted to it. Open in the
source: a client's time between two turns, tokens that conversations have in common, what the server did
before. Every point is a range over a pause of up to half a second between turns; further reasons widen
the points that they bear on.

By Little's law first tokens took 0.4 to 1.3 s longer than simulated at every HiSparse point, and 2 s with
offload at 8 clients, while the time per token agrees: work outside the engine, such as tokenising prompts
of 80,000 tokens and HTTP, which is not simulated, is what we believe in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hisparse_sim.errors import InputError
from hisparse_sim.validation.published.comparison import Answer, Comparison, Run
from hisparse_sim.validation.published.rows import Row
from hisparse_sim.validation.published.tables import Values, figure, positive, text

STEM = "openhands_glm53_8xh200"
COLUMNS = {
    "series": text,
    "configured_concurrency": positive,
    "interactivity_tok_s_user": figure,
    "mean_tpot_ms": figure,
    "logical_total_tok_s_per_gpu": figure,
    "logical_total_tok_s_8gpu": figure,
    "mean_requests_running": figure,
}
_SERIES = re.compile(
    r"(?:hisparse(?P<host>\d+)(?:\+offload(?P<index>\d+))?|offload(?P<offload>\d+)|(?P<resident>resident|baseline))"
    r"_(?:nomtp|mtp(?P<mtp>\d+))"
)
_SCENARIO = "agentic-13turn-8xh200"
OUTPUT_TOKENS = 220
TURN_TOKENS = 74_160 + 6 * (753 + OUTPUT_TOKENS) + OUTPUT_TOKENS
"""Prompt and output of the middle one of 13 turns, which is their mean."""


@dataclass(frozen=True, slots=True)
class _Open:
    """Something that the source leaves open: values to try, and which points it bears on."""

    why: str
    values: tuple[str, ...]


_PAUSE = _Open(
    "clients pause 0 to 0.5 s between turns", ("workload.think_time_s=0.25", "workload.think_time_s=0.5")
)


def comparisons(rows: Sequence[Values], place: str) -> list[Comparison]:
    """One a row. Raises InputError for a series that is not understood."""
    return [_comparison(row, place) for row in rows]


def _comparison(row: Values, place: str) -> Comparison:
    series, clients = row["series"], row["configured_concurrency"]
    match = _SERIES.fullmatch(series)
    if match is None:
        raise InputError(
            f"series {series!r} is not understood; e.g. hisparse384+offload128_nomtp, offload512_mtp3",
            where=place,
        )
    settings = [f"workload.concurrency={clients}"]
    if match["host"]:
        mode = "hisparse"
        settings += [
            f"engine.host_pool_gib={match['host']}",
            f"engine.indexer_offload_gib={match['index'] or 0}",
        ]
    elif match["offload"]:
        mode = "offload"
        settings += [f"engine.kv_offload_gib={match['offload']}"]
    else:
        mode = "resident"
    settings += [f"engine.mode={mode}", f"engine.mtp={match['mtp'] or 0}"]
    opens, remark = _left_open(mode, clients, float(match["offload"] or 0))
    base = Run(_SCENARIO, tuple(settings))
    variants = [Run(_SCENARIO, (*settings, value)) for each in opens for value in each.values]
    why = "; ".join([each.why for each in opens] + ([remark] if remark else []))

    def lines(answers: Sequence[Answer]) -> list[Row]:
        note = "; ".join(filter(None, [why, _first_tokens(row, answers[0])]))
        return [
            _row(row, answers, metric, column, of, f"{series}, {clients} clients", note)
            for metric, column, of in _FIGURES
        ]

    return Comparison((base, *variants), lines)


def _left_open(mode: str, clients: int, offload_gib: float) -> tuple[list[_Open], str]:
    """What to vary at a point, and what is believed to explain the rest."""
    opens = [_PAUSE]
    if mode == "offload" and 8 < clients < 24:
        low, high = 0.95 * offload_gib, 1.05 * offload_gib
        opens.append(
            _Open(
                "the tier holds just as many conversations as there are clients: 5 % more or less of it",
                (f"engine.kv_offload_gib={low:g}", f"engine.kv_offload_gib={high:g}"),
            )
        )
    if clients >= 24 and mode == "hisparse":
        opens.append(
            _Open(
                "conversations may share a system prompt, up to 15,000 tokens",
                ("workload.shared_prefix_tokens=7500", "workload.shared_prefix_tokens=15000"),
            )
        )
        return (
            opens,
            "published throughput rises by a fifth from 24 to 32 clients, a prefill-bound server's cannot",
        )
    if clients == 1:
        return opens, "28 to 36 s of the published wall time are neither prefill nor decode: warm-up, or HTTP"
    return opens, ""


def _first_tokens(row: Values, answer: Answer) -> str:
    """What the published figures say of the time to first token, which is not among them.

    Little's law: clients / (turns per second) is the time of a turn, of which TPOT tells the decode.
    """
    turns_per_s = row["logical_total_tok_s_8gpu"] / TURN_TOKENS
    if isinstance(answer, str) or not turns_per_s:
        return ""
    turn_s = row["configured_concurrency"] / turns_per_s
    ttft_s = turn_s - (OUTPUT_TOKENS - 1) * row["mean_tpot_ms"] / 1e3
    found: float = answer["ttft_s"]["mean"]
    return f"by Little's law a turn's first token (and pause) took {ttft_s:.1f} s, simulated {found:.1f} s"


def _row(
    row: Values,
    answers: Sequence[Answer],
    metric: str,
    column: str,
    of: Callable[[dict[str, float]], float | None],
    case: str,
    why: str,
) -> Row:
    base = answers[0]
    if isinstance(base, str):
        return Row(STEM, case, metric, row[column], None, note=base)
    values = [v for a in answers if not isinstance(a, str) and (v := of(a)) is not None]
    return Row(
        STEM, case, metric, row[column], of(base), min(values, default=None), max(values, default=None), why
    )


def _tpot_ms(summary: dict[str, float]) -> float | None:
    mean = summary["tpot_s"]["mean"]  # type: ignore[index]
    return None if mean is None else 1000 * mean


_FIGURES: tuple[tuple[str, str, Callable[[dict[str, float]], float | None]], ...] = (
    ("running_mean", "mean_requests_running", lambda s: s["running_mean"]),
    ("mean_tpot_ms", "mean_tpot_ms", _tpot_ms),
    ("total_tok_s_per_gpu", "logical_total_tok_s_per_gpu", lambda s: s["total_tokens_per_s_per_gpu"]),
)
