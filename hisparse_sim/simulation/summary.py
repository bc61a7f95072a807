"""The figures of a run, from what the recorder wrote."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hisparse_sim import __version__
from hisparse_sim.scenario.scenario import Scenario, SloSpec
from hisparse_sim.scenario.workload import PoissonSpec
from hisparse_sim.simulation.links import D2H, H2D, HostLink
from hisparse_sim.simulation.recorder import Recorder, RequestRecord
from hisparse_sim.simulation.replica import Replica

SCHEMA = "hisparse-sim/summary/1"
SAMPLE_S = 30.0
SHORT_RUN_S = 600.0
SHORT_RUN_SAMPLES = 20
_POINTS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}

Floats = npt.NDArray[np.float64]


def ttft_s(r: RequestRecord) -> float | None:
    """Arrival to first token."""
    return None if r.first_token_s is None else r.first_token_s - r.arrival_s


def e2e_s(r: RequestRecord) -> float | None:
    """Arrival to last token."""
    return None if r.finish_s is None else r.finish_s - r.arrival_s


def tpot_s(r: RequestRecord) -> float | None:
    """(E2E - TTFT) / (output tokens - 1), as ``vllm bench serve`` defines it."""
    if r.finish_s is None or r.first_token_s is None or r.sampled < 2:
        return None
    return (r.finish_s - r.first_token_s) / (r.sampled - 1)


def summarise(
    scenario: Scenario,
    replica: Replica,
    recorder: Recorder,
    link: HostLink,
    *,
    sim_time_s: float,
    complete: bool,
) -> dict[str, Any]:
    """``summary.json``: see the README for each figure. Undefined is None."""
    requests = recorder.requests
    done = [r for r in requests if r.status == "completed"]
    failed = sum(r.status == "failed" for r in requests)
    span = _span(requests)
    output = sum(r.sampled for r in done)
    total = sum(r.prompt_tokens + r.sampled for r in done)
    gpus = scenario.tp * scenario.engine.dp
    host_link = scenario.node.host_link
    running = samples(recorder.queue, sim_time_s, column=1)
    waiting = samples(recorder.queue, sim_time_s, column=2)
    busy = running[running > 0]
    usage = _usage(recorder, replica)
    h2d, d2h = _moved(scenario, link)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "scenario": scenario.name,
        "mode": scenario.engine.mode,
        "seed": scenario.seed,
        "calibration": replica.profile.id,
        "calibration_sha256": replica.profile.hash,
        "complete": complete,
        "running_mean": _mean(busy) if len(running) and len(busy) else 0.0,
        "running_time_weighted": _time_mean(recorder.queue, sim_time_s, 1),
        "waiting_mean": _time_mean(recorder.queue, sim_time_s, 2),
        "output_tokens_per_s": _rate(output, span),
        "total_tokens_per_s": _rate(total, span),
        "total_tokens_per_s_per_gpu": _rate(total, span * gpus),
        "ttft_s": spread(ttft_s(r) for r in done),
        "tpot_s": spread(tpot_s(r) for r in done),
        "itl_s": _weighted_spread(recorder.gaps),
        "e2e_s": spread(e2e_s(r) for r in done),
        "preemptions": recorder.preemptions,
        "prefix_hit_rate": _share(recorder.hit_tokens, recorder.prompt_tokens),
        "offload_hit_rate": _share(recorder.loaded_tokens, recorder.prompt_tokens),
        "host_to_device_bytes": h2d,
        "device_to_host_bytes": d2h,
        "pcie_h2d_usage_mean": _rate(link.bytes[H2D], sim_time_s * host_link.copy_h2d_bytes_per_s),
        "pcie_d2h_usage_mean": _rate(link.bytes[D2H], sim_time_s * host_link.copy_d2h_bytes_per_s),
        "hot_hit_rate": _share(recorder.lookups_rows - recorder.misses_rows, recorder.lookups_rows),
        **usage,
        "requests_completed": len(done),
        "requests_failed": failed,
        "requests_incomplete": len(requests) - len(done) - failed,
        "goodput": goodput(scenario.slo, requests, span),
        "verdict": _verdict(scenario, recorder, failed, waiting),
        "limit": _limit(recorder, requests, replica, sim_time_s),
        "waiting_for_s": dict(sorted(recorder.short_of.items())),
        "step_time_s": dict(sorted(recorder.parts.items())),
        "engine_steps": recorder.steps,
        "sim_time_s": sim_time_s,
        "pools": {
            "num_gpu_blocks": replica.pools.num_gpu_blocks,
            "num_host_blocks": replica.pools.num_host_blocks or replica.pools.num_cpu_chunks or None,
            "block_size": replica.pools.block_size,
            "max_model_len": replica.pools.max_model_len,
            "max_concurrency": replica.pools.max_concurrency,
            "steady_concurrency": replica.pools.steady_concurrency,
            "kv_bytes_per_gpu": replica.pools.kv_bytes,
        },
        "warnings": list(replica.cost.warnings),
    }


def samples(queue: list[tuple[float, int, int]], end_s: float, *, column: int) -> Floats:
    """Running (column 1) or waiting (2) requests as a scraper sees them.

    Every 30 s; a run shorter than 600 s at 20 equal intervals. The definition of the published
    figures that runs are compared with.
    """
    if not queue or end_s <= 0:
        return np.empty(0)
    if end_s < SHORT_RUN_S:
        at = end_s * np.arange(1, SHORT_RUN_SAMPLES + 1) / SHORT_RUN_SAMPLES
    else:
        at = np.arange(SAMPLE_S, end_s + 1e-9, SAMPLE_S)
    times = np.array([q[0] for q in queue])
    values = np.array([q[column] for q in queue], dtype=float)
    index = np.searchsorted(times, at, side="left") - 1  # what was true just before the sample
    return np.where(index >= 0, values[np.maximum(index, 0)], 0.0)


def spread(values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean and percentiles (linear interpolation) of what is defined."""
    found = np.array([v for v in values if v is not None])
    if not len(found):
        return dict.fromkeys(("mean", *_POINTS))
    points = zip(_POINTS, np.percentile(found, [100 * q for q in _POINTS.values()]), strict=True)
    return {"mean": float(found.mean()), **{name: float(value) for name, value in points}}


def _weighted_spread(counts: dict[float, int]) -> dict[str, float | None]:
    """The same of values with counts; a percentile is the smallest value with that share at or below."""
    if not counts:
        return spread(())
    values = np.array(sorted(counts))
    weights = np.array([counts[v] for v in values.tolist()])
    below = np.cumsum(weights)
    result: dict[str, float | None] = {"mean": float((values * weights).sum() / below[-1])}
    for name, q in _POINTS.items():
        result[name] = float(values[np.searchsorted(below, q * below[-1])])
    return result


def goodput(slo: SloSpec, requests: list[RequestRecord], span_s: float) -> float | None:
    """Requests per second that met every given goal; None if no goal is given."""
    goals = [(slo.ttft_s, ttft_s), (slo.tpot_s, tpot_s), (slo.e2e_s, e2e_s)]
    goals = [(bound, of) for bound, of in goals if bound is not None]
    if not goals:
        return None
    good = 0
    for r in requests:
        if r.status == "completed":
            values = [(bound, of(r)) for bound, of in goals]
            good += all(v is None or (bound is not None and v <= bound) for bound, v in values)
    return _rate(good, span_s)


def _span(requests: list[RequestRecord]) -> float:
    """First arrival to last completion, seconds."""
    ends = [r.finish_s for r in requests if r.finish_s is not None]
    return max(ends) - min(r.arrival_s for r in requests) if ends else 0.0


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Floats) -> float:
    return float(values.mean())


def _time_mean(queue: list[tuple[float, int, int]], end_s: float, column: int) -> float | None:
    if not queue or end_s <= queue[0][0]:
        return None
    times = np.array([*(q[0] for q in queue), end_s])
    values = np.array([q[column] for q in queue], dtype=float)
    return float((values * np.diff(times)).sum() / (end_s - times[0]))


def _usage(recorder: Recorder, replica: Replica) -> dict[str, float | None]:
    rows = recorder.rows
    pools = replica.pools
    gpu = pools.num_gpu_blocks - 1
    host = pools.num_host_blocks - 1 if pools.num_host_blocks else pools.num_cpu_chunks
    if not rows:
        return {"gpu_kv_usage_mean": None, "gpu_kv_usage_max": None, "host_usage_max": None}
    used = 1 - np.array([r.gpu_free_blocks for r in rows]) / gpu
    seconds = np.array([r.end_s - r.start_s for r in rows])
    least = min(r.host_free_blocks for r in rows)
    weight = seconds.sum()
    return {
        "gpu_kv_usage_mean": float((used * seconds).sum() / weight) if weight else float(used.mean()),
        "gpu_kv_usage_max": float(used.max()),
        "host_usage_max": 1 - least / host if host else None,
    }


def _moved(scenario: Scenario, link: HostLink) -> tuple[float, float]:
    """Bytes over all ranks' links: each rank pulls its own copy; a shared host pool is written once."""
    ranks = scenario.tp
    writers = 1 if scenario.engine.mode == "hisparse" and scenario.engine.shared_host_pool else ranks
    return link.bytes[H2D] * ranks, link.bytes[D2H] * writers


def _verdict(scenario: Scenario, recorder: Recorder, failed: int, waiting: Floats) -> str:
    if failed:
        return "infeasible"
    if isinstance(scenario.workload, PoissonSpec) and len(waiting) >= 4:
        half = waiting[len(waiting) // 2 :]
        arrivals = max((r.arrival_s for r in recorder.requests), default=0.0)
        times = [q for q in recorder.queue if q[0] <= arrivals]
        end = times[-1][2] if times else 0
        middle = [q[2] for q in times if q[0] <= arrivals / 2]
        if len(half) and end > max(middle[-1] if middle else 0, 1) * 1.5 and end > 2:
            return "overloaded"
    if len(waiting) and float((waiting > 0).mean()) > 0.5:
        return "backlogged"
    return "stable"


_WORDS = {
    "GPU blocks": "GPU memory for KV",
    "host blocks": "host pool",
    "max_num_batched_tokens": "prefill: max_num_batched_tokens a step",
    "max_num_seqs": "max_num_seqs",
    "loads": "loads from the offload tier",
}


def _limit(recorder: Recorder, requests: list[RequestRecord], replica: Replica, sim_time_s: float) -> str:
    """What kept requests from running most of the time, in words."""
    failed = [r for r in requests if r.status == "failed"]
    if failed and len(failed) == len(requests):
        longest = max(r.prompt_tokens + r.output_tokens for r in failed)
        return f"a request of {longest:,} tokens exceeds max_model_len {replica.pools.max_model_len:,}"
    short = recorder.short_of
    if short and sum(short.values()) > 0.05 * max(recorder.busy_s, 1e-12):
        what = max(short, key=lambda k: short[k])
        return f"{_WORDS.get(what, what)} ({_percent(short[what], recorder.busy_s)} of the time)"
    if not recorder.parts:
        return "nothing ran"
    part = max(recorder.parts, key=lambda k: recorder.parts[k])
    total = sum(recorder.parts.values())
    busy = recorder.busy_s / sim_time_s if sim_time_s else 0.0
    if busy < 0.5:
        return f"the clients: the engine is idle {_percent(1 - busy, 1)} of the time"
    return f"compute: {part} ({_percent(recorder.parts[part], total)} of step time)"


def _percent(part: float, whole: float) -> str:
    return f"{math.floor(100 * part / whole + 0.5)} %"
