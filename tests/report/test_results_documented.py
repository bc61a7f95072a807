"""docs/reference/results.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "results.md"


@pytest.fixture(scope="module", params=["hisparse", "offload"])
def result(request: pytest.FixtureRequest) -> Result:
    settings = (f"engine.mode={request.param}", "workload.limit=6", "workload.concurrency=2")
    return simulate(load_scenario("agentic-13turn-8xh200", overrides=settings))


def documented(file: str) -> list[str]:
    """The columns that the table of a file names, in order."""
    section = DOCS.read_text(encoding="utf-8").split(f"## `{file}`")[1].split("\n## ")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in firsts for name in re.findall(r"`(\w+)`", cell)]


def test_every_column_is_documented_in_order(result: Result) -> None:
    assert documented("requests.parquet") == list(result.requests.columns)
    assert documented("steps.parquet") == list(result.steps.columns)


def test_bytes_of_the_steps_are_those_of_one_link(result: Result) -> None:
    summary, steps, tp = result.summary, result.steps, result.scenario.tp
    assert summary["host_to_device_bytes"] == pytest.approx(tp * steps["h2d_bytes"].sum())
    stored = steps["d2h_bytes"].sum()
    assert stored > 0 and stored <= summary["device_to_host_bytes"] <= tp * stored * (1 + 1e-9)


def test_rates_are_over_the_busy_period(result: Result) -> None:
    summary, requests = result.summary, result.requests
    busy_s = requests["finish_s"].max() - requests["arrival_s"].min()
    assert summary["output_tokens_per_s"] == pytest.approx(requests["output_tokens"].sum() / busy_s)
    assert summary["sim_time_s"] == pytest.approx(requests["finish_s"].max())


def test_every_key_of_the_summary_that_is_named_is_there(result: Result) -> None:
    tail = DOCS.read_text(encoding="utf-8").split("## Over one link")[1]
    known = {*result.summary, *result.steps.columns}
    assert set(re.findall(r"`(\w+)`", tail)) <= known
