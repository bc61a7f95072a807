"""What an engine would not survive is an outcome with a name, a step and a remedy, and the remedy helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hisparse_sim.cli.main import run as command
from hisparse_sim.scenario.loader import load_scenario
from hisparse_sim.simulation.run import simulate
from hisparse_sim.simulation.survival import NONE, endings_of
from hisparse_sim.workload.make import make_workload

PRESSED = (
    "engine.indexer_offload_gib=0",
    "engine.available_kv_gib=8",
    "engine.max_model_len=20000",
    "engine.host_pool_gib=100",
    "workload={kind: poisson, rate_per_s: 20, requests: 40, prompt_tokens: 6000, output_tokens: 1000,"
    " length_jitter: 0.9}",
)
# 4,353 blocks are just what 0.33 wants at start-up for 32,768 tokens, but the second chunk of a prompt,
# beside the first one still on its way to the host, and the hot buffer need more.
NARROW = (
    "engine.indexer_offload_gib=0",
    "engine.async_scheduling=false",
    "engine.max_model_len=32768",
    "engine.max_num_batched_tokens=8192",
    "engine.num_gpu_blocks=4353",
    "engine.host_pool_gib=100",
    "workload={kind: stream, concurrency: 2, requests: 3, prompt_tokens: 32000, output_tokens: 20}",
)


def summary(*settings: str, version: str) -> dict[str, Any]:
    overrides = [*settings, f"engine.version={version}"]
    return simulate(load_scenario("agentic-13turn-8xh200", overrides=overrides)).summary


def test_vllm_030_dies_where_its_admission_forgets_the_copies_of_a_hit() -> None:
    found = summary(*PRESSED, version="0.30")
    (ending,) = endings_of(found)
    assert found["engine_death"]["name"] == ending.name == "admission crash"
    assert ending.error.startswith("Cannot get ")
    assert ending.error.endswith(" free blocks from the pool")
    assert ending.step > 0
    assert ending.time_s > 0
    assert found["verdict"] == "infeasible"
    assert ending.requests == found["requests_failed"] > 0
    assert found["requests_failed"] + found["requests_completed"] == 40


@pytest.mark.parametrize(
    "remedy", [("0.33",), ("0.30", "engine.max_num_seqs=8")], ids=["another version", "fewer requests"]
)
def test_the_remedies_of_the_crash_help(remedy) -> None:
    version, *settings = remedy
    found = summary(*PRESSED, *settings, version=version)
    assert endings_of(found) == []
    assert found["requests_completed"] == 40


@pytest.mark.parametrize("version", ["0.33", "0.30"])
def test_requests_preempted_for_ever_are_given_up_and_the_next_has_its_turn(version) -> None:
    found = summary(*NARROW, "engine.transfer_delay_steps=1", version=version)
    (ending,) = endings_of(found)
    assert found["live_lock"]["name"] == ending.name == "live-lock"
    assert (ending.requests, found["requests_failed"], found["verdict"]) == (3, 3, "infeasible")
    assert ending.step >= 1000
    assert ending.time_s > 0
    assert found["limit"].startswith(f"live-lock in step {ending.step:,}")


def test_requests_that_wait_while_nothing_runs_are_told() -> None:
    # Without a delay 0.30 finds the first chunk again after its preemption, which then asks for a hot buffer
    # beside the rest of the prompt: more than the pool has.
    found = summary(*NARROW, version="0.30")
    (ending,) = endings_of(found)
    assert found["standstill"]["name"] == ending.name == "standstill"
    assert (ending.requests, found["requests_failed"]) == (2, 2)
    assert "wait for GPU blocks" in ending.error


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("0.33", ["engine.max_num_batched_tokens=2048"]),
        ("0.33", ["engine.num_gpu_blocks=7500"]),
        ("0.30", ["engine.num_gpu_blocks=20000"]),
        ("0.30", ["engine.num_gpu_blocks=20000", "engine.transfer_delay_steps=1"]),
    ],
)
def test_the_remedies_of_live_lock_and_standstill_help(version, settings) -> None:
    found = summary(*NARROW, *settings, version=version)
    assert {key: found[key] for key in NONE} == NONE
    assert (found["requests_completed"], found["requests_failed"]) == (3, 0)


@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "prefix_affinity"])
def test_when_an_instance_dies_the_others_go_on_and_get_its_requests(router, tmp_path: Path) -> None:
    pressed = load_scenario("agentic-13turn-8xh200", overrides=PRESSED)
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    for session in make_workload(pressed.workload, pressed.seed).sessions():
        (spec,) = session.requests
        # One instance is sent these, the other one a short prompt after each.
        lines.append(f"{session.start_s},{spec.prompt_tokens},{spec.output_tokens}")
        lines.append(f"{session.start_s},100,2000")
    lines += [f"{60 + second},1000,10" for second in range(8)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    cluster = ("cluster.instances=2", f"cluster.router={router}")
    played = f"workload={{kind: trace, path: {trace}}}"
    settings = [*PRESSED[:-1], "engine.version=0.30", *cluster, played]
    result = simulate(load_scenario("agentic-13turn-8xh200", overrides=settings))
    ending = result.summary["engine_death"]
    dead, lives = ending["replica"], 1 - ending["replica"]
    assert endings_of(result.summary)[0].replica == dead
    requests = result.requests
    later = requests[requests["arrival_s"] > ending["time_s"]]
    assert len(later) == 8
    assert set(later["replica"]) == {lives}
    assert set(later["status"]) == {"completed"}
    lost = requests[requests["status"] == "failed"]
    assert ending["requests"] == len(lost)
    assert set(lost["replica"]) == {dead}


def test_live_locks_of_all_replicas_are_counted_and_last_as_long_as_the_run() -> None:
    found = summary(*NARROW, "engine.transfer_delay_steps=1", "cluster.instances=2", version="0.33")
    assert found["live_lock"]["requests"] == found["requests_failed"] == 3
    assert found["live_lock"]["replica"] == 0
    assert found["sim_time_s"] > found["live_lock"]["time_s"]
    assert max(found["waiting_for_s"].values(), default=0.0) <= found["sim_time_s"]
    assert 0 < found["pcie_d2h_usage_mean"] < 1


@pytest.mark.parametrize(("blocks", "completed"), [(60_000, 0), (66_560, 1)])
def test_a_tenth_of_the_pool_of_030_must_hold_a_hot_buffer_and_the_pages_of_two_steps(
    blocks, completed
) -> None:
    # 3,750 pages x 21 blocks are more than either pool. Hot buffer: 20 groups x 64 = 1,280 blocks; a step of
    # 8,192 tokens: 128 pages x 21 = 2,688.
    long = "workload={kind: stream, concurrency: 1, requests: 1, prompt_tokens: 240000, output_tokens: 20}"
    room = (f"engine.num_gpu_blocks={blocks}", "engine.max_model_len=250000")
    found = summary(*NARROW[:-1], *room, long, version="0.30")
    assert found["requests_completed"] == completed
    assert [ending.name for ending in endings_of(found)] == ([] if completed else ["standstill"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((*PRESSED, "engine.version=0.30"), "admission crash in step "),
        ((*NARROW, "engine.version=0.33"), "live-lock in step 1,999 ("),
        ((*NARROW, "engine.version=0.30"), "standstill in step 2 ("),
    ],
)
def test_the_command_says_name_step_and_remedy_in_one_line(tmp_path: Path, capsys, settings, said) -> None:
    flags = [word for text in settings for word in ("--set", text)]
    out = ["--no-plots", "--json", "--out", str(tmp_path)]
    assert command(["run", "agentic-13turn-8xh200", *flags, *out]) == 0
    (line,) = [text for text in capsys.readouterr().err.splitlines() if said in text]
    assert line.startswith(f"warning: {said}")
    assert "engine.version 0.33" in line or "engine.max_num_batched_tokens" in line
    reasons = pd.read_parquet(tmp_path / "requests.parquet")["reason"]
    assert (reasons != "").any()
