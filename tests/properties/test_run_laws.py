"""A run is a function of its scenario and seed, and of nothing else: docs/explanation/laws.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hisparse_sim.cli.main import run as command
from hisparse_sim.scenario.loader import load_scenario, scenario_from_mapping
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.run import simulate
from hisparse_sim.workload.make import make_workload
from hisparse_sim.workload.save import save

PLAYED = ("requests.parquet", "steps.parquet", "summary.json")
"""What depends on what was asked of the engine alone, and not on where that came from."""

LENGTHS = st.one_of(
    st.integers(700, 3000),
    st.just({"kind": "lognormal", "median": 1500, "sigma": 1.2, "low": 700, "high": 6000}),
)
ARRIVALS = st.sampled_from(
    [
        {"kind": "poisson", "rate_per_s": 3},
        {"kind": "gamma", "rate_per_s": 40, "burstiness": 0.3},
        {"kind": "even", "rate_per_s": 7},
        {
            "kind": "piecewise",
            "steps": [{"duration_s": 3, "rate_per_s": 5}, {"duration_s": 9, "rate_per_s": 1}],
        },
    ]
)
OPEN = st.fixed_dictionaries(
    {
        "kind": st.just("open"),
        "arrivals": ARRIVALS,
        "requests": st.integers(1, 30),
        "prompt_tokens": LENGTHS,
        "output_tokens": st.integers(1, 200),
    }
)
TENANTS = [{"name": "gold", "priority": -1, "shared_prefix_tokens": 700}, {"name": "rest", "share": 3}]
TALKS = st.fixed_dictionaries(
    {
        "kind": st.just("conversations"),
        "concurrency": st.integers(1, 6),
        "conversations": st.integers(1, 7),
        "turns": st.integers(1, 4),
        "first_prompt_tokens": LENGTHS,
        "new_tokens_per_turn": st.integers(1, 400),
        "output_tokens": st.integers(1, 200),
        "think_time_s": st.sampled_from([0.0, 0.3]),
        "shared_prefix_tokens": st.sampled_from([0, 500]),
        "tenants": st.sampled_from([[], TENANTS]),
    }
)
STREAMS = st.fixed_dictionaries(
    {
        "kind": st.just("stream"),
        "concurrency": st.integers(1, 8),
        "requests": st.integers(1, 16),
        "prompt_tokens": LENGTHS,
        "output_tokens": st.integers(1, 200),
        "shared_prefix_tokens": st.sampled_from([0, 500]),
    }
)
ENGINES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["resident", "offload", "hisparse"]),
        "version": st.sampled_from(["0.33", "0.33", "0.30"]),
        "async_scheduling": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "max_num_seqs": st.sampled_from([2, 64]),
        "max_num_batched_tokens": st.sampled_from([512, 2048]),
        "available_kv_gib": st.sampled_from([1.0, 6.0]),
        "host_pool_gib": st.just(30),
        "kv_offload_gib": st.sampled_from([8, 80]),
    }
)


def asked(engine: dict[str, Any], workload: dict[str, Any], seed: int) -> Scenario:
    engine = {"max_model_len": 12_000, "kv_cache_dtype": "fp8", **engine}
    whole = {"name": "law", "model": "glm-5.3", "node": "8xh200", "seed": seed}
    return scenario_from_mapping({**whole, "engine": engine, "workload": workload})


def files(scenario: Scenario, folder: Path) -> dict[str, bytes]:
    simulate(scenario).write(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def played_again(engine: dict[str, Any], trace: Path, seed: int) -> Scenario:
    return asked(engine, {"kind": "trace", "path": str(trace)}, seed)


def law(*, examples: int, workloads: st.SearchStrategy[dict[str, Any]]) -> Any:
    """A test of random scenarios, each in a folder of its own."""
    suppressed = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    return lambda test: suppressed(
        given(engine=ENGINES, workload=workloads, seed=st.integers(0, 2**31))(test)
    )


@law(examples=12, workloads=st.one_of(OPEN, TALKS, STREAMS))
def test_a_scenario_and_its_seed_give_the_same_bytes(tmp_path_factory, engine, workload, seed):
    folder = tmp_path_factory.mktemp("run")
    one = files(asked(engine, workload, seed), folder / "one")
    two = files(asked(engine, workload, seed), folder / "two")
    again = files(load_scenario(str(folder / "one" / "scenario.yaml")), folder / "again")
    assert set(one) == {*PLAYED, "scenario.yaml", "timing.json"}
    for name in set(one) - {"timing.json"}:
        assert one[name] == two[name] == again[name], name


@law(examples=15, workloads=st.one_of(OPEN, TALKS, STREAMS))
def test_a_run_and_the_replay_of_its_saved_requests_are_the_same_bytes(
    tmp_path_factory, engine, workload, seed
):
    folder = tmp_path_factory.mktemp("run")
    scenario = asked(engine, workload, seed)
    one = files(scenario, folder / "one")
    save(make_workload(scenario.workload, scenario.seed), folder / "asked.jsonl")
    two = files(played_again(engine, folder / "asked.jsonl", seed), folder / "two")
    for name in PLAYED:
        assert one[name] == two[name], name
    # The scenarios differ in where the requests come from, and in nothing else.
    first, second = (yaml.safe_load(each["scenario.yaml"]) for each in (one, two))
    assert first["scenario"].pop("workload") != second["scenario"].pop("workload")
    assert first == second


@law(examples=20, workloads=OPEN)
def test_an_open_run_and_the_replay_of_its_requests_table_are_the_same_bytes(
    tmp_path_factory, engine, workload, seed
):
    folder = tmp_path_factory.mktemp("run")
    one = files(asked(engine, workload, seed), folder / "one")
    table = folder / "one" / "requests.parquet"
    if (pd.read_parquet(table)["status"] != "completed").any():
        return  # of a request that failed the table has the tokens that came, not those asked for
    two = files(played_again(engine, table, seed), folder / "two")
    for name in PLAYED:
        assert one[name] == two[name], name


def test_neither_the_hash_seed_nor_the_process_changes_a_byte(tmp_path: Path) -> None:
    arguments = ["run", "agentic-13turn-8xh200", "--set", "workload.conversations=2", "--no-plots"]
    call = "from hisparse_sim.cli.main import main; main()"
    command([*arguments, "--out", str(tmp_path / "here")])
    for seed in ("0", "1"):
        subprocess.run(
            [sys.executable, "-c", call, *arguments, "--out", str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
    for name in (*PLAYED, "scenario.yaml"):
        content = {(tmp_path / folder / name).read_bytes() for folder in ("here", "0", "1")}
        assert len(content) == 1, name


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    workload = {"kind": "poisson", "rate_per_s": 5, "requests": 20, "prompt_tokens": 500, "output_tokens": 50}
    one, two = (files(asked({}, workload, seed), tmp_path / str(seed)) for seed in (1, 2))
    assert one["requests.parquet"] != two["requests.parquet"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_commands_do_what_the_law_says(tmp_path: Path, kind: str) -> None:
    few = ["agentic-13turn-8xh200", "--set", "workload.conversations=3"]
    saved, one, two = (str(tmp_path / name) for name in (f"asked.{kind}", "one", "two"))
    assert command(["run", *few, "--no-plots", "--out", one]) == 0
    assert command(["workload", "save", *few, "--out", saved]) == 0
    assert command(["run", few[0], "--trace", saved, "--no-plots", "--out", two]) == 0
    for name in PLAYED:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
