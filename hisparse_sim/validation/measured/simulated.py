"""The figures of a simulated run under the names that measured ones have.

=========================== ======= ====================================================================
name                        unit    definition, where it is not that of ``simulation/summary.py``
=========================== ======= ====================================================================
duration_s                  s       first arrival to last token
requests_per_s              1/s     completed requests over it
prompt_tokens, output_tokens        of completed requests
prompt_tokens_per_s         1/s     the same over the duration, cached ones included, as vLLM counts them
in_flight_max                       most requests within a second, as ``vllm bench serve`` counts its peak
running_max, waiting_max            of engine steps; of several engines at the same time
prefix_hit_rate             1       prompt tokens found on the GPU (under HiSparse, in its host pool, too)
external_hit_rate           1       those loaded from the offload tier, of the tokens that were asked there
queue_s                     s       arrival to first step
acceptance_length                   tokens_per_decode_step
=========================== ======= ====================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hisparse_sim.simulation.result import Result
from hisparse_sim.validation.measured.evidence import POINTS, spread

_SAME = (
    "requests_completed",
    "requests_failed",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "running_mean",
    "waiting_mean",
    "gpu_kv_usage_mean",
    "gpu_kv_usage_max",
    "host_usage_max",
    "hot_hit_rate",
    "preemptions",
    "draft_acceptance",
    "host_to_device_bytes",
    "device_to_host_bytes",
)
SPREADS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
ORDER = (
    *("requests_completed", "requests_failed", "duration_s", "requests_per_s"),
    *("prompt_tokens", "output_tokens", "prompt_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s"),
    *(f"{name}_{point}" for name in ("queue_s", *SPREADS) for point in ("mean", *POINTS)),
    *("running_mean", "running_max", "waiting_mean", "waiting_max", "in_flight_max"),
    *("gpu_kv_usage_mean", "gpu_kv_usage_max", "host_usage_max", "preemptions"),
    *("prefix_hit_rate", "external_hit_rate", "hot_hit_rate", "draft_acceptance", "acceptance_length"),
    *("host_to_device_bytes", "device_to_host_bytes"),
)
"""Every name, in the order that rows are shown in."""


def figures(result: Result) -> dict[str, float]:
    """Those that are defined."""
    summary, records = result.summary, result.request_records
    found: dict[str, Any] = {name: summary[name] for name in _SAME}
    found["acceptance_length"] = summary["tokens_per_decode_step"]
    for name in SPREADS:
        found |= {f"{name}_{point}": value for point, value in summary[name].items()}
    found |= spread(
        "queue_s",
        (None if r.first_scheduled_s is None else r.first_scheduled_s - r.arrival_s for r in records),
    )
    done = [r for r in records if r.status == "completed" and r.finish_s is not None]
    found["prompt_tokens"] = sum(r.prompt_tokens for r in done)
    found["output_tokens"] = sum(r.sampled for r in done)
    if done:
        arrivals = np.array([r.arrival_s for r in done])
        ends = np.array([r.finish_s for r in done], dtype=float)
        start_s = min(r.arrival_s for r in records)
        span_s = found["duration_s"] = float(ends.max()) - start_s
        if span_s > 0:
            found["requests_per_s"] = len(done) / span_s
            found["prompt_tokens_per_s"] = found["prompt_tokens"] / span_s
        begins, stops = ((times - start_s).astype(int) for times in (arrivals, ends))
        change = np.zeros(int(stops.max()) + 2, dtype=int)
        np.add.at(change, begins, 1)
        np.add.at(change, stops + 1, -1)
        found["in_flight_max"] = int(change.cumsum().max())
    if len(result.step_log.columns("running")[0]):
        found["running_max"] = _most(result, "running")
        found["waiting_max"] = _most(result, "waiting")
    hits, loads = summary["prefix_hit_rate"], summary["offload_hit_rate"]
    if hits is not None and loads is not None:
        found["prefix_hit_rate"] = hits - loads
        if hits - loads < 1:
            found["external_hit_rate"] = loads / (1 - (hits - loads))
    return {name: float(value) for name, value in found.items() if value is not None}


def _most(result: Result, column: str) -> int:
    """The most of all engines together while their steps ran."""
    value, start_s, end_s = result.step_log.columns(column, "start_s", "end_s")
    times = np.concatenate((start_s, end_s))
    at, place = np.unique(times, return_inverse=True)
    change = np.zeros(len(at), dtype=np.int64)
    np.add.at(change, place, np.concatenate((value, -value)))
    return int(change.cumsum().max())
