"""What a point gives: a flat row, the same columns for every point of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

from hisparse_sim.errors import HiSparseError
from hisparse_sim.planning.point import Kind
from hisparse_sim.scenario.check import check_estimated
from hisparse_sim.scenario.scenario import Scenario

Row = dict[str, Any]

SPREADS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
QUANTILES = ("mean", "p50", "p90", "p95", "p99")
RUN_NUMBERS: tuple[str, ...] = (
    "running_mean",
    "running_time_weighted",
    "waiting_mean",
    "waiting_share",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "total_tokens_per_s_per_gpu",
    *(f"{name}.{quantile}" for name in SPREADS for quantile in QUANTILES),
    "goodput",
    "preemptions",
    "prefix_hit_rate",
    "offload_hit_rate",
    "hot_hit_rate",
    "host_to_device_bytes",
    "device_to_host_bytes",
    "pcie_h2d_usage_mean",
    "pcie_d2h_usage_mean",
    "dram_usage_mean",
    "gpu_kv_usage_mean",
    "gpu_kv_usage_max",
    "host_usage_max",
    "requests_completed",
    "requests_failed",
    "engine_steps",
    "sim_time_s",
    "pools.num_gpu_blocks",
    "pools.num_host_blocks",
    "pools.max_model_len",
    "pools.max_concurrency",
    "pools.steady_concurrency",
    "pools.kv_bytes_per_gpu",
    "out_of_domain.steps",
)
"""Of ``summary.json``, where each is defined."""
ESTIMATE_NUMBERS: tuple[str, ...] = (
    "context_tokens",
    "requests",
    "requests_by_gpu",
    "requests_by_host",
    "tpot_s",
    "tokens_per_s",
    "resident_share",
    "pools.num_gpu_blocks",
    "pools.num_host_blocks",
    "pools.max_model_len",
    "pools.max_concurrency",
    "pools.steady_concurrency",
    "pools.kv_bytes_per_gpu",
)
"""``requests``: of ``context_tokens`` (the longest of the workload's first sessions), at once over all
replicas; ``tpot_s`` and ``tokens_per_s``: decode of so many, or of the workload's concurrency if that is
less."""
TEXTS: dict[Kind, tuple[str, ...]] = {
    "run": ("status", "error", "verdict", "limit", "mode", "scenario"),
    "estimate": ("status", "error", "limit", "mode", "scenario"),
}
"""``status``: ``done``, or ``refused`` with the reason in ``error``."""

_PEEKED = 8
"""Sessions that an estimate looks at for the longest context."""


def numbers(kind: Kind) -> tuple[str, ...]:
    """Columns of numbers (float64, NaN where undefined)."""
    return RUN_NUMBERS if kind == "run" else ESTIMATE_NUMBERS


def refused_row(scenario: Scenario, reason: str) -> Row:
    """Of a point with which no engine would start."""
    return {"status": "refused", "error": reason, "mode": scenario.engine.mode, "scenario": scenario.name}


def compute(scenario: Scenario, kind: Kind) -> Row | None:
    """The row of one point; none if Ctrl-C cut it short. What is refused is a row that says so."""
    try:
        return _run(scenario) if kind == "run" else _estimate(scenario)
    except HiSparseError as error:
        return refused_row(scenario, str(error))


def _run(scenario: Scenario) -> Row | None:
    from hisparse_sim.simulation.run import simulate

    summary = simulate(scenario).summary
    if not summary["complete"]:
        return None
    flat = _flat(summary)
    names = (*RUN_NUMBERS, "verdict", "limit", "mode", "scenario")
    return {"status": "done", "error": "", **{name: flat.get(name) for name in names}}


def _flat(summary: Mapping[str, Any], before: str = "") -> Row:
    found: Row = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _estimate(scenario: Scenario) -> Row:
    from hisparse_sim.estimate.concurrency import mode_pools
    from hisparse_sim.estimate.latency import decode_model

    check_estimated(scenario)
    model, node, engine, replicas = scenario.model, scenario.node, scenario.engine, scenario.replicas
    found: Row = {"status": "done", "error": "", "mode": engine.mode, "scenario": scenario.name}
    concurrency, longest = _load(_Asked(scenario.workload.model_dump_json(), scenario.seed, scenario))
    pools = mode_pools(model, node, engine, engine.mode)
    if pools.sizes is None:
        return refused_row(scenario, pools.reason)
    tokens = min(longest, pools.sizes.max_model_len)
    count = pools.count(tokens)
    batch = min(count.requests, -(-(concurrency or count.requests) // replicas))
    pricer, _ = decode_model(model, node, pools, calibration=scenario.calibration, locality=scenario.locality)
    tpot_s = pricer.nominal_s(batch, tokens) if pricer is not None and batch else None
    sizes = pools.sizes
    return found | {
        "context_tokens": tokens,
        "requests": count.requests * replicas,
        "requests_by_gpu": count.gpu * replicas,
        "requests_by_host": None if count.host is None else count.host * replicas,
        "limit": count.limit,
        "tpot_s": tpot_s,
        "tokens_per_s": batch * replicas / tpot_s if tpot_s else None,
        "resident_share": pools.resident_share(tokens, batch),
        "pools.num_gpu_blocks": sizes.num_gpu_blocks,
        "pools.num_host_blocks": sizes.num_host_blocks or sizes.num_cpu_chunks or None,
        "pools.max_model_len": sizes.max_model_len,
        "pools.max_concurrency": sizes.max_concurrency,
        "pools.steady_concurrency": sizes.steady_concurrency,
        "pools.kv_bytes_per_gpu": sizes.kv_bytes,
    }


@dataclass(frozen=True, slots=True)
class _Asked:
    """A workload by what it is, so that points that share it look at it once."""

    workload: str
    seed: int
    scenario: Scenario = field(compare=False)


@lru_cache(maxsize=256)
def _load(asked: _Asked) -> tuple[int | None, int]:
    """Requests at once and tokens of the longest of the first sessions."""
    from hisparse_sim.workload.make import make_workload

    workload = make_workload(asked.scenario.workload, asked.seed, check=False)
    turns = [r for s in islice(workload.sessions(), _PEEKED) for r in s.requests]
    return workload.concurrency, max((r.prompt_tokens + r.output_tokens for r in turns), default=1)
