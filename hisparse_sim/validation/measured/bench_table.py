"""The tables that ``vllm bench serve`` prints, wherever they stand in a text."""

from __future__ import annotations

import re

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.bench import Bench
from hisparse_sim.workload.traces.rows import MAX_CLOCK

RULE = "Serving Benchmark Result ===="
_LABELS = {
    "successful requests": "requests_completed",
    "failed requests": "requests_failed",
    "benchmark duration (s)": "duration_s",
    "total input tokens": "prompt_tokens",
    "total generated tokens": "output_tokens",
    "request throughput (req/s)": "requests_per_s",
    "output token throughput (tok/s)": "output_tokens_per_s",
    "total token throughput (tok/s)": "total_tokens_per_s",
    "peak concurrent requests": "in_flight_max",
    "acceptance length": "acceptance_length",
}
_NEEDED = ("requests_completed", "duration_s", "prompt_tokens", "output_tokens")
_LATENCY = re.compile(r"(mean|median|p50|p90|p95|p99) (ttft|tpot|itl|e2el) \(ms\)")
_NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
_LINE = re.compile(r"^\s*([A-Za-z][^:]*?):\s+(-?[\d.,]+|inf|nan)\s*[^\d\s]?\s*$")
_END = re.compile(r"^={20,}\s*$")


def tables(text: str, where: str) -> tuple[list[Bench], list[str]]:
    """All tables, and what is wrong with some. Raises InputError if none can be used."""
    found, problems = [], []
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if RULE in line]
    for start, after in zip(starts, [*starts[1:], len(lines)], strict=True):
        place = f"{where}:{start + 1}"
        bench = Bench("bench", place)
        ended = False
        for line in lines[start + 1 : after]:
            if ended := bool(_END.match(line.strip())):
                break
            _take(bench, line)
        missing = [name for name in _NEEDED if not bench.figures.get(name)]
        if not bench.figures.get("requests_completed") and ended:
            problems.append(f"{place}: the table is of a benchmark of which no request completed; left out")
        elif missing:
            problems.append(f"{place}: the table is cut before {', '.join(missing)}; left out")
        else:
            if not ended:
                bench.problems.append(f"{place}: the table is cut before its last line; the rest is used")
            found.append(bench)
    if not found:
        raise InputError("; ".join(p.removeprefix(f"{where}:") for p in problems), where=where)
    return found, problems


def _take(bench: Bench, line: str) -> None:
    if not (match := _LINE.match(line)):
        return
    label, printed = match[1].strip().lower(), match[2].replace(",", "")
    try:
        value = float(printed)
    except ValueError:
        return
    if label == "request rate configured (rps)":
        bench.request_rate_per_s = value
    elif not 0 <= value < MAX_CLOCK:
        return
    elif label in _LABELS:
        bench.figures[_LABELS[label]] = value
    elif latency := _LATENCY.fullmatch(label):
        point = latency[1].replace("median", "p50")
        bench.figures[f"{_NAMES[latency[2]]}_{point}"] = value / 1000
    elif re.fullmatch(r"position \d+", label):
        bench.settings.setdefault("mtp_acceptance", []).append(round(value / 100, 4))
    elif label == "acceptance rate (%)":
        bench.figures["draft_acceptance"] = value / 100
    elif label == "maximum request concurrency":
        bench.max_concurrency = int(value)
