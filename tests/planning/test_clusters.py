"""Several engines in sweeps and plans by estimate."""

from __future__ import annotations

import pytest

from hisparse_sim.planning.point import Point
from hisparse_sim.planning.row import compute
from hisparse_sim.planning.screen import Screen
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.scenario.scenario import Scenario


def asked(*overrides: str) -> Scenario:
    return load_scenario("agentic-13turn-8xh200", overrides=["workload.concurrency=16", *overrides])


def test_an_estimate_of_two_instances_is_that_of_one_with_half_the_clients():
    one, two = (
        compute(asked("workload.concurrency=8"), "estimate"),
        compute(asked("cluster.instances=2"), "estimate"),
    )
    assert one is not None and two is not None
    assert two["requests"] == 2 * one["requests"]
    assert two["tpot_s"] == one["tpot_s"]
    assert two["tokens_per_s"] == pytest.approx(2 * one["tokens_per_s"])


def test_instances_take_machines_of_their_own():
    sized = Screen(()).size(Point(asked("cluster.instances=3"), {}, ""))
    assert sized is not None
    assert (sized.replicas, sized.span) == (3, 3)


def test_prefill_apart_is_left_to_runs():
    row = compute(asked("cluster.prefill.instances=1"), "estimate")
    assert row is not None
    assert row["status"] == "refused"
    assert row["error"].startswith("cluster.prefill: estimates are of instances that prefill and decode")
