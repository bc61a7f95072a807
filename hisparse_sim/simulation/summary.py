"""The figures of a run, from what the recorder wrote: ``summary.json``.

"The run" is simulated time 0 to the last completion (or the interruption, or where the last engine
stopped that gave requests up, died or stood still); "the busy period" begins with the first arrival
instead, and its rates end with the last completion. Percentiles interpolate linearly. What is undefined
is null.

=========================== ======= =====================================================================
key                         unit    definition
=========================== ======= =====================================================================
schema, version                     of this file; of the package
scenario, mode, seed                what was run
engine                              ``vllm`` or ``sglang``
calibration(_sha256)                profile that priced the steps, and its hash
locality(_sha256), locality_source  how selected rows repeat: a locality file, its hash and what it was
                                    fitted to (or a fixed share of misses); null outside HiSparse
complete                            false: interrupted; figures are of what was done until then
running_mean                requests mean of samples of running requests, those that prefill included and
                                    those that load from an offload tier not; every 30 s, or 20 equal
                                    intervals in a run under 600 s, and 10^6 in one too long for every 30 s;
                                    zero samples dropped; 0 if all are
running_time_weighted       requests mean over the busy period, zeros included
waiting_mean                requests the same of requests that wait or load, as
                                    ``vllm:num_requests_waiting`` counts them
waiting_share               1       share of all samples with a request waiting
output_tokens_per_s         1/s     output tokens of completed requests over the busy period
total_tokens_per_s          1/s     the same with their prompt tokens, cached ones included
total_tokens_per_s_per_gpu  1/s     the same per GPU
ttft_s                      s       arrival to first token, of completed requests
tpot_s                      s       (E2E - TTFT) / (output tokens - 1), of those with at least 2
itl_s                       s       between consecutive tokens, of all requests; a percentile is the
                                    smallest latency with that share at or below it; tokens of one step
                                    come together and count once, as in ``vllm bench serve``
e2e_s                       s       arrival to last token, of completed requests
tokens_per_decode_step              with MTP: sampled and accepted tokens of a request's step (acceptance
                                    length); else null
draft_acceptance            1       with MTP: accepted of the drafted tokens; else null
preemptions                         a request may count more than once
prefix_hit_rate             1       prompt tokens found in any tier at first admission / prompt tokens
                                    (where prefill is apart, by the engines that prefill; what those that
                                    decode had of a prompt is missing from network_bytes)
offload_hit_rate            1       those of them that the offload tier had to load
host_to_device_bytes        bytes   over the links of all GPUs
device_to_host_bytes        bytes   the same; ranks that share a host pool write it once
network_bytes               bytes   of prompts that decoding engines read from prefilling ones, all ranks
pcie_(h2d|d2h)_usage_mean   1       of one GPU's link (the rank that mirrors), of its copy rate, the run
dram_usage_mean             1       bytes read and written / (host memory's rate x the run)
hot_hit_rate                1       looked-up rows found in the hot buffers; rows in resident pages are
                                    not looked up
gpu_kv_usage_(mean|max)     1       blocks of the GPU pool in use, cached but idle ones not; mean over the
                                    time of engine steps
host_usage_max              1       hisparse: host blocks in use, cached but idle ones not; offload:
                                    chunks that hold anything
requests_completed                  finished
requests_failed                     longer than max_model_len, or never finished though nothing was left
                                    to happen
requests_incomplete                 under way when the run was interrupted
goodput                     1/s     completed requests that met each goal of ``slo`` (a goal that is
                                    undefined for a request counts as met); null without goals
verdict                             infeasible: a request failed; overloaded: open loop (no cap on live
                                    sessions), and the queue grew over the last half of the arrivals by 2
                                    and by 5 % of what arrived in it; backlogged: waiting_share above
                                    1/2; stable
limit                               what kept requests waiting or, if they rarely waited, what time went to
waiting_for_s               s       time during which requests waited, by what the first one lacked, in the
                                    mean of the replicas; where some only prefill, in the mean of these
                                    and of the others, added
step_time_s                 s       engine steps by part of their cost; ``link``: stalls
engine_steps                        steps that ran on the GPU
sim_time_s                  s       the run
pools                               sizes as vLLM counts them (null blocks included)
by_tenant                           null, or of each tenant ("": of none) when there are several: its
                                    requests (completed, failed, incomplete), tokens of the completed,
                                    rates over the run's busy period, latencies, goodput, preemptions
                                    and prefix_hit_rate; of more than 100 the 100 with most requests
by_priority                         the same of each priority
replicas                            engines: DP replicas of all instances; ``pools`` are of one of them
prefill                             null, or how many more engines only prefill, and the blocks of each
by_replica                          the same of each of them
engine_death                        null, or name, step, time, words, remedy and replica (null where there is
                                    one) of the first engine that did not survive (vLLM 0.30's admission),
                                    and how many requests failed by it and others that did not
live_lock                           the same of requests preempted for ever, which a run gives up
standstill                          the same where requests wait for ever and nothing runs
out_of_domain                       engine steps priced outside what the profile was fitted to: ``steps``
                                    of them, the ``furthest`` value of each variable with the largest
                                    measured, and what ``stands_in`` for something not measured
warnings                            assumptions that this run stretches
=========================== ======= =====================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim import __version__
from hisparse_sim.memory.budget import PoolSizes
from hisparse_sim.memory.host import place
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.columns import StepLog
from hisparse_sim.simulation.links import D2H, H2D
from hisparse_sim.simulation.recorder import Recorder
from hisparse_sim.simulation.replica import Replica
from hisparse_sim.simulation.schema import SCHEMA
from hisparse_sim.simulation.served import by_group, counts, ratio, served, spread_of_gaps
from hisparse_sim.simulation.survival import NONE, Ending

SAMPLE_S = 30.0
SHORT_RUN_S = 600.0
SHORT_RUN_SAMPLES = 20
MOST_SAMPLES = 10**6
_RARELY = 0.2
"""Share of the time below which waiting is not what limits."""
_GROWN, _GROWN_SHARE = 2, 0.05
"""What a queue must grow by to be called overloaded: chance alone moves a stable one a little."""

Floats = npt.NDArray[np.float64]
Queue = Sequence[tuple[float, int, int]]
"""(time, running, waiting) whenever one of them changes."""


class Gauges(NamedTuple):
    """The same as arrays."""

    times_s: Floats
    running: Floats
    waiting: Floats


class Totals(NamedTuple):
    """What all engines have moved, and what they have."""

    pool_blocks: Sequence[tuple[int, int]]
    """Of each engine, on GPU and host; those that only prefill come last."""
    link_bytes: tuple[float, float] = (0.0, 0.0)
    """Over the link of one GPU, to and from it, in the mean of the replicas that decode."""
    host_bytes: tuple[float, float] = (0.0, 0.0)
    """Read from and written to host memory, over all ranks."""
    network_bytes: float = 0.0
    """Read from engines that prefill, over all ranks."""
    prefill: PoolSizes | None = None
    """Of an engine that only prefills."""


def summarise(
    scenario: Scenario,
    replica: Replica,
    recorder: Recorder,
    steps: StepLog,
    totals: Totals,
    *,
    end_s: float,
    complete: bool,
    open_loop: bool,
    endings: Mapping[str, Ending | None] = NONE,
) -> dict[str, Any]:
    """The content of ``summary.json``; a run that goes on may be asked for it at any time.

    ``open_loop``: nobody waits to begin a session.
    """
    link_bytes, host_bytes = totals.link_bytes, totals.host_bytes
    requests, pools, gauge = recorder.requests, replica.pools, gauges(recorder.queue)
    done = [r for r in requests if r.status == "completed"]
    ended = counts(requests)
    failed = ended["requests_failed"]
    start_s = min((r.arrival_s for r in requests), default=0.0)
    span_s = max((r.finish_s for r in done if r.finish_s is not None), default=start_s) - start_s
    found = served(done, scenario.slo, span_s)
    total_per_s = found["total_tokens_per_s"]
    running = samples(gauge.times_s, gauge.running, end_s)
    waiting = samples(gauge.times_s, gauge.waiting, end_s)
    waiting_share = float((waiting > 0).mean()) if len(waiting) else None
    waited_s = recorder.waited(end_s)
    if scenario.engine.kind == "sglang":
        waited_s = {_OF_SGLANG.get(what, what): seconds for what, seconds in waited_s.items()}
    lookups = recorder.cost.lookups_rows
    copy = scenario.node.host_link
    nodes = _nodes(scenario) + (_nodes(scenario.prefilling) if scenario.prefilling else 0)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "scenario": scenario.name,
        "mode": scenario.engine.mode,
        "engine": scenario.engine.kind,
        "seed": scenario.seed,
        "calibration": replica.profile.id,
        "calibration_sha256": replica.profile_sha256,
        **_locality(replica),
        "complete": complete,
        "running_mean": float(running[running > 0].mean()) if running.any() else 0.0,
        "running_time_weighted": time_mean(gauge.times_s, gauge.running, start_s, end_s),
        "waiting_mean": time_mean(gauge.times_s, gauge.waiting, start_s, end_s),
        "waiting_share": waiting_share,
        **found,
        "total_tokens_per_s_per_gpu": None if total_per_s is None else total_per_s / scenario.gpus,
        "itl_s": spread_of_gaps(recorder.gaps),
        "tokens_per_decode_step": _tokens_per_step(recorder),
        "draft_acceptance": ratio(recorder.accepted_tokens, recorder.draft_tokens),
        "preemptions": recorder.preemptions,
        "prefix_hit_rate": ratio(recorder.hit_tokens, recorder.prompt_tokens),
        "offload_hit_rate": ratio(recorder.loaded_tokens, recorder.prompt_tokens),
        "host_to_device_bytes": host_bytes[H2D],
        "device_to_host_bytes": host_bytes[D2H],
        "network_bytes": totals.network_bytes,
        "pcie_h2d_usage_mean": ratio(link_bytes[H2D], end_s * copy.copy_h2d_bytes_per_s),
        "pcie_d2h_usage_mean": ratio(link_bytes[D2H], end_s * copy.copy_d2h_bytes_per_s),
        "dram_usage_mean": ratio(sum(host_bytes), end_s * nodes * scenario.node.dram_bytes_per_s),
        "hot_hit_rate": ratio(lookups - recorder.cost.misses_rows, lookups),
        **_usage(steps, totals.pool_blocks),
        **ended,
        "verdict": _verdict(recorder, gauge, failed, waiting_share, open_loop),
        "limit": _limit(recorder, waited_s, failed, end_s - start_s),
        "waiting_for_s": dict(sorted(waited_s.items())),
        "step_time_s": dict(sorted(recorder.parts.items())),
        "engine_steps": recorder.steps,
        "sim_time_s": float(end_s),
        "pools": {
            "num_gpu_blocks": pools.num_gpu_blocks,
            "num_host_blocks": pools.num_host_blocks or pools.num_cpu_chunks or None,
            "block_size": pools.block_size,
            "resident_groups": pools.resident_groups or None,
            "max_model_len": pools.max_model_len,
            "max_concurrency": pools.max_concurrency,
            "steady_concurrency": pools.steady_concurrency,
            "kv_bytes_per_gpu": pools.kv_bytes,
        },
        "by_tenant": by_group(requests, lambda r: r.tenant, scenario.slo, span_s),
        "by_priority": by_group(requests, lambda r: r.priority, scenario.slo, span_s),
        "replicas": scenario.replicas,
        "prefill": _prefill(totals, scenario.replicas),
        "by_replica": by_group(requests, lambda r: r.replica, scenario.slo, span_s),
        **{name: ending.as_json() if ending else None for name, ending in endings.items()},
        "out_of_domain": out_of_domain(replica),
        "warnings": [*replica.warnings, *filter(None, [replica.cost.outside.words(recorder.steps)])],
    }


def out_of_domain(replica: Replica) -> dict[str, Any]:
    """Steps that were priced by extrapolation, and how far that went."""
    outside = replica.cost.outside
    return {
        "steps": outside.count,
        "furthest": [
            {"variable": f.variable, "value": f.value, "measured_to": f.most, "times": f.beyond}
            for f in outside.furthest
        ],
        "stands_in": list(dict.fromkeys(replica.cost.stands_in)),
    }


def gauges(queue: Queue) -> Gauges:
    """The queue as arrays."""
    found = np.array(list(zip(*queue, strict=True)), dtype=float).reshape(3, -1)
    return Gauges(*found)


def samples(times_s: Floats, values: Floats, end_s: float) -> Floats:
    """Running or waiting requests as a scraper sees them, from their ``values`` since ``times_s``.

    Every 30 s; a run shorter than 600 s at 20 equal intervals, one of more than 30 million seconds at a
    million. The definition of the published figures that runs are compared with. A sample at the moment
    of a change shows what was before.
    """
    if not len(times_s) or end_s <= 0:
        return np.empty(0)
    count = SHORT_RUN_SAMPLES if end_s < SHORT_RUN_S else min(math.floor(end_s / SAMPLE_S), MOST_SAMPLES)
    every_s = SAMPLE_S if SHORT_RUN_SAMPLES < count < MOST_SAMPLES else end_s / count
    at = np.minimum(every_s * np.arange(1, count + 1), end_s)  # the last may be rounded to after the end
    index = np.searchsorted(times_s, at, side="left") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], 0.0)


def time_mean(times_s: Floats, values: Floats, start_s: float, end_s: float) -> float | None:
    """Mean from ``start_s`` to ``end_s``, weighted with time; 0 before the first entry."""
    if end_s <= start_s:
        return None
    times = np.clip(np.append(times_s, end_s), start_s, end_s)
    return float((values * np.diff(times)).sum() / (end_s - start_s))


def _prefill(totals: Totals, decoding: int) -> dict[str, int] | None:
    if totals.prefill is None:
        return None
    engines = len(totals.pool_blocks) - decoding
    return {"replicas": engines, "num_gpu_blocks": totals.prefill.num_gpu_blocks}


def _nodes(scenario: Scenario) -> int:
    return scenario.cluster.instances * place(scenario.node, scenario.engine).nodes


def _tokens_per_step(recorder: Recorder) -> float | None:
    mean = ratio(recorder.accepted_tokens, recorder.verified_steps)
    return None if mean is None else 1.0 + mean


def _usage(steps: StepLog, pool_blocks: Sequence[tuple[int, int]]) -> dict[str, float | None]:
    """``pool_blocks``: of each engine, on GPU and host."""
    start_s, end_s, of, gpu_free, host_free = steps.columns(
        "start_s", "end_s", "replica", "gpu_free_blocks", "host_free_blocks"
    )
    seconds = end_s - start_s
    if not len(seconds):
        return dict.fromkeys(("gpu_kv_usage_mean", "gpu_kv_usage_max", "host_usage_max"))
    gpu, host = np.array(pool_blocks).T
    used = 1 - gpu_free / gpu[of]
    there = host[of] > 0
    host_used = 1 - host_free[there] / host[of][there]
    return {
        "gpu_kv_usage_mean": float((used * seconds).sum() / seconds.sum()),
        "gpu_kv_usage_max": float(used.max()),
        "host_usage_max": float(host_used.max()) if len(host_used) else None,
    }


def _locality(replica: Replica) -> dict[str, str | None]:
    misses = replica.cost.misses
    if misses is None:
        return dict.fromkeys(("locality", "locality_sha256", "locality_source"))
    digest = misses.locality.hash if misses.locality is not None else None
    return {"locality": misses.id, "locality_sha256": digest, "locality_source": misses.source}


def _verdict(
    recorder: Recorder, gauge: Gauges, failed: int, waiting_share: float | None, open_loop: bool
) -> str:
    if failed:
        return "infeasible"
    if open_loop and _grew(recorder, gauge):
        return "overloaded"
    return "backlogged" if (waiting_share or 0.0) > 0.5 else "stable"


def _grew(recorder: Recorder, gauge: Gauges) -> bool:
    """Whether the queue grew over the last half of the arrivals, from the means of its two quarters."""
    arrivals = np.array([r.arrival_s for r in recorder.requests])
    if len(arrivals) < 2:
        return False
    start_s, end_s = float(arrivals.min()), float(arrivals.max())
    half, quarter = (start_s + end_s) / 2, (end_s - start_s) / 4
    times_s, waiting = gauge.times_s, gauge.waiting
    before = time_mean(times_s, waiting, half, half + quarter) or 0.0
    after = time_mean(times_s, waiting, half + quarter, end_s) or 0.0
    return 2 * (after - before) > max(_GROWN, _GROWN_SHARE * int((arrivals > half).sum()))


_WORDS = {
    "GPU blocks": "GPU memory for KV",
    "host blocks": "host pool",
    "max_num_batched_tokens": "prefill: max_num_batched_tokens a step",
    "chunked_prefill_size": "prefill: chunked_prefill_size a step",
    "loads": "loads of KV from the offload tier or from prefill",
}
_OF_SGLANG = {"max_num_batched_tokens": "chunked_prefill_size", "max_num_seqs": "max_running_requests"}
"""SGLang's names of what a request may lack."""


def _limit(recorder: Recorder, short: dict[str, float], failed: int, span_s: float) -> str:
    """What kept requests from running, in words; if little did, where the time went."""
    if failed and failed == len(recorder.requests):
        return next(r.reason for r in recorder.requests)
    parts = recorder.parts
    if not parts or span_s <= 0:
        return "nothing ran"
    if sum(short.values()) > _RARELY * span_s:
        what = max(short, key=lambda k: short[k])
        return f"{_WORDS.get(what, what)} ({_percent(short[what], span_s)} of the time)"
    idle = 1 - recorder.busy_s / span_s
    if idle > 0.5:
        return f"the clients: the engine is idle {_percent(idle, 1)} of the time"
    part = max(parts, key=lambda k: parts[k])
    share = _percent(parts[part], sum(parts.values()))
    return f"the clients: requests rarely wait; {part} is {share} of step time"


def _percent(part: float, whole: float) -> str:
    return f"{math.floor(100 * part / whole + 0.5)} %"
