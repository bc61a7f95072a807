"""The requests of a benchmark as a workload that can be simulated, and what the scenario's says otherwise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.validation.measured.bench import Bench, Sent
from hisparse_sim.validation.measured.contradictions import Contradiction

TOLERANCE = 0.05
"""Drawn lengths differ by chance from their mean."""


def rebuilt(bench: Bench, path: Path, *, seed: int) -> TraceSpec | None:
    """Write the requests to ``path``, a line each, as a trace of the plain format; none without lengths.

    Arrivals are the benchmark's where it says them. Without, they are drawn (Poisson, as ``vllm bench
    serve`` does by default) at its request rate; at an infinite rate they are all at once, or one after
    the other if it had a maximum concurrency.
    """
    if not bench.sent:
        return None
    sent, clients = _timed(bench, seed)
    lines = [
        json.dumps(
            {
                "id": f"request-{i}",
                **({} if s.arrival_s is None else {"arrival_s": s.arrival_s}),
                "prompt_tokens": s.prompt_tokens,
                "output_tokens": s.output_tokens,
            }
        )
        for i, s in enumerate(sent)
    ]
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
    return TraceSpec(path=path, format="plain", concurrency=clients)


def _timed(bench: Bench, seed: int) -> tuple[list[Sent], int | None]:
    """Requests in order of arrival from 0 on, and the clients of a closed loop."""
    times = [s.arrival_s for s in bench.sent]
    if all(t is not None for t in times):
        first_s = min(t for t in times if t is not None)
        moved = [Sent(s.prompt_tokens, s.output_tokens, (s.arrival_s or 0.0) - first_s) for s in bench.sent]
        return sorted(moved, key=lambda s: s.arrival_s or 0.0), None
    rate = bench.request_rate_per_s
    if rate is not None and math.isfinite(rate) and rate > 0:
        gaps_s = np.random.default_rng(seed).exponential(1 / rate, len(bench.sent))
        arrivals = np.concatenate(([0.0], gaps_s[:-1].cumsum())).tolist()
        bench.notes.append(f"no start times: arrivals are drawn at {rate:g} requests a second")
        return [
            Sent(s.prompt_tokens, s.output_tokens, t) for s, t in zip(bench.sent, arrivals, strict=True)
        ], (bench.max_concurrency)
    if bench.max_concurrency is not None:
        return bench.sent, bench.max_concurrency
    bench.notes.append("no start times and no request rate: all requests are sent at once")
    return [Sent(s.prompt_tokens, s.output_tokens, 0.0) for s in bench.sent], None


def asked_otherwise(bench: Bench, simulated: Mapping[str, float]) -> Iterator[Contradiction]:
    """Where a benchmark without lengths was asked other things than the scenario's workload.

    A run of the scenario says what that asks (``simulated``); the cure is a workload of single requests
    of the benchmark's mean lengths.
    """
    if bench.sent:
        return
    cure = _of_means(bench)
    done, ours = bench.figures["requests_completed"], simulated.get("requests_completed", 0.0)
    pairs = [("requests", ours + simulated.get("requests_failed", 0.0), float(bench.requests))]
    if ours:
        pairs += [
            (f"mean {name.replace('_', ' ')}", simulated[name] / ours, bench.figures[name] / done)
            for name in ("prompt_tokens", "output_tokens")
        ]
    for what, assumed, found in pairs:
        if abs(found - assumed) > TOLERANCE * assumed:
            yield Contradiction(what, assumed, found, "bench", {"workload": cure})


def _of_means(bench: Bench) -> dict[str, Any]:
    done = bench.figures["requests_completed"]
    lengths = {
        "prompt_tokens": max(1, round(bench.figures["prompt_tokens"] / done)),
        "output_tokens": max(1, round(bench.figures["output_tokens"] / done)),
        "requests": bench.requests,
    }
    rate = bench.request_rate_per_s
    if bench.max_concurrency is None and rate is not None and math.isfinite(rate) and rate > 0:
        return {"kind": "poisson", "rate_per_s": rate, **lengths}
    return {"kind": "stream", "concurrency": bench.max_concurrency or bench.requests, **lengths}
