"""With a constant step and memory without end the simulator is a textbook queue: docs/explanation/laws.md.

A step takes ``STEP_S`` whatever is in it (a machine of boundless speed, a profile of overhead alone), so a
request of one prompt token and n output tokens is served n steps, and ``max_num_seqs`` is the number of
servers. Two things differ from the textbook, both by known amounts:

- lengths are whole: a geometric number of steps, of mean m, stands for an exponential time. By
  Pollaczek-Khinchine the wait of one server is then shorter by 1 part in 2 m.
- with several servers a place may be free while the others are in the middle of a step: a request then
  waits for the step to end, at most ``STEP_S``. (A lone server is free between steps only.)
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from hisparse_sim.scenario.loader import scenario_from_mapping
from hisparse_sim.simulation.run import simulate

STEP_S = 0.25
WARM_UP = 100
"""Requests at the beginning that find the queue emptier than it usually is."""
CONFIDENCE = 0.99
Floats = np.ndarray

MODEL = {
    "name": "tiny",
    "architecture": "LlamaForCausalLM",
    "attention": "gqa",
    "num_layers": 1,
    "dense_layers": 1,
    "hidden_size": 64,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 64,
    "intermediate_size": 64,
    "vocab_size": 2,
    "max_context_tokens": 100_000,
    "weights": {"shared_bytes": 1000, "dtype": "bf16"},
}
BOUNDLESS = 1e18
LINK = ("copy_h2d", "copy_d2h", "gather", "gather_per_request", "both_ways")
NODE = {
    "name": "boundless",
    "gpus": 1,
    "gpu": {
        "name": "boundless",
        "vendor": "nvidia",
        "generation": "hopper",
        "memory_bytes": 10**11,
        "memory_grade": "datasheet",
        "marketing_bytes": 10**11,
        "hbm_bytes_per_s": BOUNDLESS,
        "bf16_flops": BOUNDLESS,
        "fp8_flops": BOUNDLESS,
    },
    "host_link": {"kind": "pcie5", **{f"{name}_bytes_per_s": BOUNDLESS for name in LINK}},
    "nvlink_bytes_per_s": 0,
    "dram_bytes": 10**12,
    "dram_bytes_per_s": BOUNDLESS,
}
SHARES = [f"roofline.{part}_share" for part in ("hbm", "bf16", "fp8", "attention")]
TERMS = {"overhead.layer": ("s", STEP_S), **dict.fromkeys(SHARES, ("1", 1.0))}
PROFILE = {
    "schema": "hisparse-sim/calibration/1",
    "id": "constant-step",
    "kind": "synthetic",
    "hardware": {"gpu": "boundless", "generation": "hopper"},
    "sources": {"test": {"text": "chosen, so that a step takes the same time whatever is in it"}},
    "terms": [
        {
            "id": name,
            "form": "constant",
            "unit": unit,
            "params": {"value": value},
            "source": "test",
            "grade": "guess",
        }
        for name, (unit, value) in TERMS.items()
    ],
}


class Served(NamedTuple):
    """Of each request, in order of arrival, in seconds."""

    arrival: Floats
    wait: Floats
    service: Floats


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Runs a workload on so many servers."""
    profile = tmp_path_factory.mktemp("queue") / "constant-step.json"
    profile.write_text(json.dumps(PROFILE))

    def run(workload: dict[str, Any], *, servers: int, seed: int = 0) -> Served:
        engine = {
            "mode": "resident",
            "max_num_seqs": servers,
            "max_model_len": 100_000,
            "enable_prefix_caching": False,
            "async_scheduling": False,  # a token is known when its step ends
        }
        parts = {"model": MODEL, "node": NODE, "calibration": str(profile), "engine": engine}
        scenario = scenario_from_mapping({"name": "queue", "seed": seed, "workload": workload, **parts})
        result = simulate(scenario)
        assert result.summary["preemptions"] == 0
        records = result.request_records
        times = [(r.arrival_s, r.first_scheduled_s, r.finish_s) for r in records]
        arrival, start, finish = np.array(times).T
        return Served(arrival, start - arrival, finish - start)

    return run


def exponential(folder: Path, seed: int, *, rate_per_s: float, steps: int, requests: int) -> dict[str, Any]:
    """Requests at exponential intervals whose service is a geometric number of steps, as a trace."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, requests))
    lengths = rng.geometric(1 / steps, requests)
    rows = (
        {"arrival_s": arrival, "prompt_tokens": 1, "output_tokens": length}
        for arrival, length in zip(arrivals.tolist(), lengths.tolist(), strict=True)
    )
    path = folder / f"{seed}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "trace", "path": str(path)}


def lindley(queue: Served) -> Floats:
    """Waits of a single server, from arrivals and services (Lindley 1952)."""
    wait, waits = 0.0, []
    gaps = np.diff(queue.arrival, append=queue.arrival[-1])
    for gap, service in zip(gaps.tolist(), queue.service.tolist(), strict=True):
        waits.append(wait)
        wait = max(0.0, wait + service - gap)
    return np.array(waits)


def agrees(replications: list[float], theory: float, *, bias: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether the confidence interval of independent replications holds the theory, given a known bias."""
    mean = float(np.mean(replications))
    error = float(np.std(replications, ddof=1)) / math.sqrt(len(replications))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(replications) - 1) * error
    assert half < 0.25 * mean, "the interval is too wide to tell anything"
    return theory + bias[0] - half <= mean <= theory + bias[1] + half


def mm1(rate: float, service: float) -> float:
    """Mean wait of M/M/1."""
    load = rate * service
    return load * service / (1 - load)


def md1(rate: float, service: float) -> float:
    """Mean wait of M/D/1: half of M/M/1's (Pollaczek-Khinchine)."""
    return mm1(rate, service) / 2


def erlang_c(rate: float, service: float, servers: int) -> float:
    """Share of arrivals that find all servers of M/M/k busy (Erlang 1917)."""
    offered = rate * service
    terms = [offered**n / math.factorial(n) for n in range(servers + 1)]
    all_busy = terms[-1] / (1 - offered / servers)
    return all_busy / (sum(terms[:-1]) + all_busy)


def mmk(rate: float, service: float, servers: int) -> float:
    """Mean wait of M/M/k."""
    return erlang_c(rate, service, servers) * service / (servers - rate * service)


def test_constant_service_waits_as_m_d_1(served):
    service, rate = STEP_S, 0.6 / STEP_S
    workload = {
        "kind": "poisson",
        "rate_per_s": rate,
        "requests": 1000,
        "prompt_tokens": 1,
        "output_tokens": 1,
    }
    means = []
    for seed in range(12):
        queue = served(workload, servers=1, seed=seed)
        assert queue.service == pytest.approx(service, rel=1e-9)
        assert queue.wait == pytest.approx(lindley(queue), abs=1e-6)
        means.append(queue.wait[WARM_UP:].mean())
    assert agrees(means, md1(rate, service))
    assert not agrees(means, md1(rate * 1.1, service))
    assert not agrees(means, md1(rate / 1.1, service))
    assert not agrees(means, mm1(rate, service))


def test_exponential_service_waits_as_m_m_1(served, tmp_path):
    steps = 24
    service = steps * STEP_S
    rate = 0.5 / service
    means, waited = [], []
    for seed in range(20):
        workload = exponential(tmp_path, seed, rate_per_s=rate, steps=steps, requests=800)
        queue = served(workload, servers=1)
        assert queue.wait == pytest.approx(lindley(queue), abs=1e-6)
        means.append(queue.wait[WARM_UP:].mean())
        waited.append((queue.wait[WARM_UP:] > 1e-6).mean())
    theory = mm1(rate, service)
    whole = (-theory / (2 * steps), 0.0)
    assert agrees(means, theory, bias=whole)
    assert agrees(waited, 0.5)
    assert not agrees(means, mm1(rate * 1.15, service), bias=whole)
    assert not agrees(means, mm1(rate / 1.15, service), bias=whole)
    assert not agrees(means, md1(rate, service), bias=whole)


def test_several_servers_wait_as_m_m_k(served, tmp_path):
    steps, servers = 32, 2
    service = steps * STEP_S
    rate = 0.6 * servers / service
    means, waited = [], []
    for seed in range(20):
        workload = exponential(tmp_path, seed, rate_per_s=rate, steps=steps, requests=800)
        queue = served(workload, servers=servers)
        means.append(queue.wait[WARM_UP:].mean())
        waited.append((queue.wait[WARM_UP:] > STEP_S).mean())
    theory = mmk(rate, service, servers)
    known = (-theory / (2 * steps), STEP_S)
    assert agrees(means, theory, bias=known)
    assert agrees(waited, erlang_c(rate, service, servers), bias=(-STEP_S / service, STEP_S / service))
    assert not agrees(means, mmk(rate * 1.15, service, servers), bias=known)
    assert not agrees(means, mmk(rate / 1.15, service, servers), bias=known)
    assert not agrees(means, mmk(rate, service, servers + 1), bias=known)
