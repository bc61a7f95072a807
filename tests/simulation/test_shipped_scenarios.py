"""Every shipped scenario can be run, in every mode, in a moment if one wants."""

from __future__ import annotations

import itertools

import pytest

from hisparse_sim.scenario.loader import list_scenarios, load_scenario
from hisparse_sim.simulation.run import simulate
from hisparse_sim.workload import make_workload


@pytest.mark.parametrize("mode", ["hisparse", "offload", "resident"])
@pytest.mark.parametrize("name", list_scenarios())
def test_the_first_requests_of_a_shipped_scenario_are_served(name: str, mode: str) -> None:
    if mode == "offload" and load_scenario(name).engine.kind == "sglang":
        pytest.skip("offload is a mode of vLLM's")
    scenario = load_scenario(name, overrides=["workload.limit=6", f"engine.mode={mode}"])
    summary = simulate(scenario).summary
    done, failed = summary["requests_completed"], summary["requests_failed"]
    assert done + failed == 6
    # A million tokens do not fit on the GPUs alone: that is what these are about.
    assert failed == 0 or (mode != "hisparse" and name in ("stream-1m-8xh200", "documents-1m-8xh200"))


@pytest.mark.parametrize("name", list_scenarios())
def test_a_shipped_scenario_is_no_night_s_work(name: str) -> None:
    workload = load_scenario(name).workload
    sessions = make_workload(workload, 0).sessions()
    requests = sum(len(session.requests) for session in itertools.islice(sessions, 5_000))
    assert min(requests, workload.limit or requests) <= 3_100
