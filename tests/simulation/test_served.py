"""Who got what: figures by tenant and by priority."""

from __future__ import annotations

import math
from typing import Any

import pytest
from small_runs import CONVERSATIONS, run, scenario

from hisparse_sim.scenario.scenario import SloSpec
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate
from hisparse_sim.simulation.served import MOST_GROUPS, by_group

TENANTS = [
    {"name": "gold", "priority": -1},
    {"name": "free", "share": 5, "priority": 5, "shared_prefix_tokens": 1000},
    {"name": "trial", "share": 5, "priority": 5},
]
WORK: dict[str, Any] = CONVERSATIONS | {"conversations": 12, "concurrency": 12, "tenants": TENANTS}


@pytest.fixture(scope="module")
def result() -> Result:
    slo = {"ttft_s": 1.0}
    return simulate(scenario(WORK, slo=slo, engine={"policy": "priority", "max_num_seqs": 2}))


def test_each_request_says_who_asked_and_how_urgently(result: Result) -> None:
    found = result.requests.groupby("tenant")["priority"].unique()
    assert {name: list(values) for name, values in found.items()} == {"gold": [-1], "free": [5], "trial": [5]}


def test_one_tenant_and_one_priority_need_no_figures_of_their_own() -> None:
    alone = run(CONVERSATIONS)
    assert alone.summary["by_tenant"] is None and alone.summary["by_priority"] is None
    assert alone.requests["tenant"].isna().all() and (alone.requests["priority"] == 0).all()


def test_tenants_add_up_to_the_run(result: Result) -> None:
    summary, parts = result.summary, result.summary["by_tenant"]
    assert list(parts) == ["free", "gold", "trial"]
    for key in ("output_tokens_per_s", "total_tokens_per_s", "requests_completed", "goodput", "preemptions"):
        assert sum(part[key] for part in parts.values()) == pytest.approx(summary[key]), key
    done = result.requests
    for name, part in parts.items():
        own = done[done["tenant"] == name]
        assert part["prompt_tokens"] == own["prompt_tokens"].sum()
        assert part["output_tokens"] == own["output_tokens"].sum()
        assert part["e2e_s"]["p95"] == pytest.approx(own["e2e_s"].quantile(0.95))
        assert part["prefix_hit_rate"] == pytest.approx(own["hit_tokens"].sum() / own["prompt_tokens"].sum())


def test_the_urgent_are_served_first_and_priorities_are_in_their_order(result: Result) -> None:
    parts = result.summary["by_priority"]
    assert list(parts) == ["-1", "5"]
    assert parts["-1"]["ttft_s"]["p95"] < parts["5"]["ttft_s"]["p95"] / 2


def test_what_failed_or_never_began_counts_for_its_tenant() -> None:
    parts = run(WORK, engine={"max_model_len": 100}).summary["by_tenant"]
    assert sum(part["requests_failed"] for part in parts.values()) == 36
    for part in parts.values():
        assert part["requests_completed"] == 0
        assert part["ttft_s"]["p50"] is part["prefix_hit_rate"] is part["output_tokens_per_s"] is None


def test_of_very_many_tenants_the_busiest_are_listed() -> None:
    requests = [
        RequestRecord(f"{n}-{i}", "s", 0.0, 1, 1, tenant=f"tenant {n:03d}", status="completed", sampled=1)
        for n in range(MOST_GROUPS + 20)
        for i in range(1 + (n >= 20))
    ]
    found = by_group(requests, lambda r: r.tenant, SloSpec(), math.inf)
    assert found is not None and list(found) == [f"tenant {n:03d}" for n in range(20, MOST_GROUPS + 20)]
