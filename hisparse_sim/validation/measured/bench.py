"""The result of a benchmark: ``vllm bench serve`` as JSON or as the table it prints, or a line a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.evidence import Evidence, read_measured, spread
from hisparse_sim.workload.traces.rows import MAX_CLOCK

NEEDED = ("duration", "completed", "total_input_tokens", "total_output_tokens", "total_token_throughput")
"""What every result has (vllm/benchmarks/serve.py, and benchmark_serving.py before it)."""
_PLAIN = {
    "duration": "duration_s",
    "completed": "requests_completed",
    "failed": "requests_failed",
    "total_input_tokens": "prompt_tokens",
    "total_output_tokens": "output_tokens",
    "request_throughput": "requests_per_s",
    "output_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
    "max_concurrent_requests": "in_flight_max",
    "spec_decode_acceptance_length": "acceptance_length",
}
_LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that the benchmark sent; ``arrival_s`` none: not said."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float | None = None


@dataclass(slots=True)
class Bench(Evidence):
    """One result. ``sent``: its requests, where their lengths are there. ``ended``: local time.

    ``request_rate_per_s``: inf is all at once; none: not said.
    """

    sent: list[Sent] = field(default_factory=list)
    request_rate_per_s: float | None = None
    max_concurrency: int | None = None
    ended: datetime | None = None
    model: str = ""

    @property
    def requests(self) -> int:
        """Completed and failed."""
        return int(self.figures.get("requests_completed", 0) + self.figures.get("requests_failed", 0))

    @property
    def title(self) -> str:
        """What tells it from other results of the same file."""
        duration = self.figures.get("duration_s")
        seconds = "" if duration is None else f" in {duration:,.2f} s"
        return f"{self.path}: {self.requests:,} requests{seconds}"


def read_bench(path: Path, *, which: int | None = None) -> Bench:
    """The ``which``-th result in ``path`` (from 1), which must be said if there are several.

    Raises InputError for what is none, and says which tool's it seems to be.
    """
    results, problems = read_results(path)
    if which is None and len(results) > 1:
        listed = "; ".join(f"{i}: {r.title}" for i, r in enumerate(results[:4], start=1))
        more = f"; and {len(results) - 4} more" if len(results) > 4 else ""
        raise InputError(
            f"holds {len(results)} results; choose one with --result N. {listed}{more}", where=str(path)
        )
    if which is not None and not 1 <= which <= len(results):
        raise InputError(f"there are {len(results)} results in {path}, not {which}", where="--result")
    bench = results[(which or 1) - 1]
    bench.problems = problems + bench.problems
    return bench


def read_results(path: Path) -> tuple[list[Bench], list[str]]:
    """All results of a file, and what of it cannot be used. Raises InputError if there is none."""
    from hisparse_sim.validation.measured.bench_table import RULE, tables
    from hisparse_sim.validation.measured.per_request import is_per_request, per_request

    text, problems = read_measured(path)
    if is_per_request(text):
        return [per_request(text, str(path))], problems
    if text.lstrip()[:1] in ("{", "["):
        return _documents(text, str(path)), problems
    if RULE not in text:
        raise InputError(
            f"is no result of vllm bench serve: neither the JSON of --save-result, nor its table ('{RULE}'), "
            "nor a line a request",
            where=str(path),
        )
    found, more = tables(text, str(path))
    return found, problems + more


def _documents(text: str, where: str) -> list[Bench]:
    """JSON results one after the other, as ``--append-result`` leaves them, or in a list."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while (rest := text[at:]).strip():
        at += len(rest) - len(rest.lstrip())
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", at)) + 1
            raise InputError(
                f"is no whole JSON ({getattr(error, 'msg', 'nested too deep')}); the file may be cut",
                where=f"{where}:{line}",
            ) from None
        found += document if isinstance(document, list) else [document]
    if not found:
        raise InputError("is an empty list", where=where)
    return [_result(document, where) for document in found]


def _result(data: Any, where: str) -> Bench:
    if not isinstance(data, dict) or not data:
        raise InputError("holds no JSON object with figures", where=where)
    missing = [name for name in NEEDED if name not in data]
    if missing:
        raise InputError(
            f"is no result of vllm bench serve --save-result: {_tool(data)}it has no {', '.join(missing)} "
            f"(but {', '.join(map(str, list(data)[:6]))})",
            where=where,
        )
    bench = Bench("bench", where, model=str(data.get("model_id", "")))
    for name, ours in _PLAIN.items():
        if (value := _figure(bench, data, name)) is not None:
            bench.figures[ours] = value
    if not bench.figures.get("requests_completed"):
        raise InputError("is empty: no request completed", where=where)
    for name, ours in _LATENCIES.items():
        for point in ("mean", "median", "p50", "p90", "p95", "p99"):
            if (value := _figure(bench, data, f"{point}_{name}_ms")) is not None:
                bench.figures[f"{ours}_{point.replace('median', 'p50')}"] = value / 1000
    if (rate := _figure(bench, data, "spec_decode_acceptance_rate")) is not None:
        bench.figures["draft_acceptance"] = rate / 100  # printed in per cent, too
    positions = data.get("spec_decode_per_position_acceptance_rates")
    if isinstance(positions, list) and all(isinstance(p, (int, float)) and 0 <= p <= 1 for p in positions):
        bench.settings["mtp_acceptance"] = [round(p, 4) for p in positions]
    if bench.model:
        bench.notes.append(f"of model {bench.model}")
    _sent_how(bench, data)
    _details(bench, data)
    return bench


def _tool(data: Mapping[str, Any]) -> str:
    """Whose result it seems to be."""
    marks = {
        "total_output_tokens_retokenized": "SGLang's bench_serving",
        "engine_kwargs": "a file of engine settings",
        "request_latency": "NVIDIA GenAI-Perf",
        "records": "NVIDIA AIPerf",
        "benchmarks": "GuideLLM",
        "data_file": "LLMPerf",
    }
    seems = next((tool for mark, tool in marks.items() if mark in data), "")
    return f"it seems to be {seems}; " if seems else ""


def _figure(bench: Bench, data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_CLOCK:
        bench.problems.append(f"{bench.path}: {name}: {value!r:.40} is no figure; left out")
        return None
    return float(value)


def _sent_how(bench: Bench, data: Mapping[str, Any]) -> None:
    clients = data.get("max_concurrency")
    if isinstance(clients, int) and clients > 0:
        bench.max_concurrency = clients
    with suppress(KeyError, TypeError, ValueError):
        bench.request_rate_per_s = float(data["request_rate"])
    with suppress(ValueError):
        bench.ended = datetime.strptime(str(data.get("date")), "%Y%m%d-%H%M%S")


def _details(bench: Bench, data: Mapping[str, Any]) -> None:
    """Lists with a value a request, of ``--save-detailed``."""
    lists = {name: data.get(name) for name in ("input_lens", "output_lens", "start_times", "ttfts", "errors")}
    prompts, outputs = lists["input_lens"], lists["output_lens"]
    if not isinstance(prompts, list) or not isinstance(outputs, list) or not prompts:
        return
    count = len(prompts)
    short = [name for name, values in lists.items() if isinstance(values, list) and len(values) != count]
    if "output_lens" in short:
        bench.problems.append(
            f"{bench.path}: output_lens has {len(outputs)} values, input_lens {count}; requests are left out"
        )
        return
    starts = lists["start_times"] if "start_times" not in short else None
    starts = starts if isinstance(starts, list) and starts else None
    try:
        times = [None] * count if starts is None else [float(t) for t in starts]
        bench.sent = [
            Sent(int(p), max(1, int(o)), t) for p, o, t in zip(prompts, outputs, times, strict=True) if p > 0
        ]
    except (TypeError, ValueError, OverflowError):
        bench.problems.append(f"{bench.path}: input_lens, output_lens or start_times hold other than numbers")
        return
    ttfts = lists["ttfts"]
    if isinstance(ttfts, list) and "ttfts" not in short:
        done = [t for t, o in zip(ttfts, outputs, strict=True) if o]
        if all(isinstance(t, (int, float)) and 0 <= t < MAX_CLOCK for t in done):
            bench.figures = spread("ttft_s", done) | bench.figures
