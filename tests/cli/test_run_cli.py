"""``hisparse-sim run`` as a user types it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from hisparse_sim.cli.main import run

AGENTIC = "agentic-13turn-8xh200"
SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"
SMALL = ["--concurrency", "2", "--limit", "4", "--set", "workload.first_prompt_tokens=4000"]
FILES = {"scenario.yaml", "summary.json", "requests.parquet", "steps.parquet", "timing.json"}
PLOTS = {"timeline.png", "timeline.svg", "latency.png", "latency.svg"}


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def read(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text(), parse_constant=lambda n: pytest.fail(n))


# -- what it leaves and prints ------------------------------------------------------------------


def test_it_leaves_its_files_and_prints_a_table(tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    assert run(["run", AGENTIC, "--out", str(out), *SMALL]) == 0
    assert names(out) >= FILES | PLOTS
    assert {Path(name).suffix for name in names(out) - FILES} == {".png", ".svg"}
    printed, said = capsys.readouterr()
    assert "running requests, mean" in printed
    # The capacity as vLLM prints it, and where the results are; no bar in a pipe.
    assert said.splitlines()[0].startswith("Available KV cache memory: 26.20 GiB")
    assert said.splitlines()[2].startswith("Maximum concurrency for 1,048,576 tokens per request: 3.51x")
    assert said.splitlines()[-1] == f"Results: {out}"
    assert "\r" not in said
    assert "\x1b" not in said


def test_json_is_the_summary_and_nothing_else(tmp_path, capsys):
    assert run(["run", AGENTIC, "--out", str(tmp_path), "--json", "--no-plots", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "summary.json").read_text()
    assert names(tmp_path) == FILES


def test_the_flags_change_the_scenario(tmp_path):
    flags = ["--mode", "offload", "--concurrency", "3", "--limit", "5", "--seed", "9"]
    settings = ["--set", "workload.first_prompt_tokens=4k", "--set", "engine.max_num_seqs=2"]
    assert run(["run", AGENTIC, "--out", str(tmp_path), "--no-plots", *flags, *settings]) == 0
    left = yaml.safe_load((tmp_path / "scenario.yaml").read_text())
    asked = left["scenario"]
    assert (asked["engine"]["mode"], asked["engine"]["max_num_seqs"]) == ("offload", 2)
    assert (asked["workload"]["concurrency"], asked["workload"]["limit"]) == (3, 5)
    assert asked["workload"]["first_prompt_tokens"] == 4096
    assert left["seed"] == asked["seed"] == 9
    summary = read(tmp_path)
    assert left["calibration_sha256"] == summary["calibration_sha256"]
    assert left["version"] == summary["version"]
    assert left["max_model_len"] == summary["pools"]["max_model_len"]
    assert summary["requests_completed"] == 5


def test_its_scenario_can_be_run_again_with_the_same_result(tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    assert run(["run", AGENTIC, "--out", str(first), "--no-plots", "--mode", "offload", *SMALL]) == 0
    assert run(["run", str(first / "scenario.yaml"), "--out", str(again), "--no-plots"]) == 0
    for name in FILES - {"timing.json"}:
        assert (first / name).read_bytes() == (again / name).read_bytes()


def test_other_files_of_the_folder_stay_and_old_plots_go(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert run(["run", AGENTIC, "--out", str(tmp_path), *SMALL]) == 0
    assert run(["run", AGENTIC, "--out", str(tmp_path), "--no-plots", "--mode", "resident", *SMALL]) == 0
    assert names(tmp_path) == FILES | {"notes.txt"}
    assert read(tmp_path)["mode"] == "resident"


def test_the_tables_have_their_columns(tmp_path):
    assert run(["run", AGENTIC, "--out", str(tmp_path), "--no-plots", *SMALL]) == 0
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    steps = pd.read_parquet(tmp_path / "steps.parquet")
    assert list(requests.columns) == [
        "request_id",
        "session",
        "tenant",
        "priority",
        "arrival_s",
        "first_scheduled_s",
        "first_token_s",
        "finish_s",
        "prompt_tokens",
        "output_tokens",
        "hit_tokens",
        "preemptions",
        "status",
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "itl_max_s",
        "load_start_s",
        "load_end_s",
        "preempted_s",
        "reason",
        "replica",
    ]
    assert {"first_step", "last_step", "start_s", "end_s", "running", "waiting"} <= set(steps.columns)
    assert len(requests) == 4
    assert (requests["status"] == "completed").all()


def test_a_request_that_cannot_fit_fails_and_the_run_goes_on(tmp_path, capsys):
    assert (
        run(
            [
                *("run", "stream-1m-8xh200", "--mode", "resident", "--out", str(tmp_path), "--json"),
                *("--set", "workload.requests=2", "--set", "workload.concurrency=1"),
            ]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["verdict"] == "infeasible"
    assert summary["requests_failed"] == 2
    assert summary["limit"] == "1,001,000 tokens exceed max_model_len 521,536"
    assert names(tmp_path) > PLOTS


def test_an_offload_of_nothing_is_said_to_be_one(tmp_path, capsys):
    args = ["run", AGENTIC, "--out", str(tmp_path), "--no-plots", "--json", "--mode", "offload", *SMALL]
    assert run([*args, "--set", "engine.kv_offload_gib=0"]) == 0
    printed, said = capsys.readouterr()
    warning = "engine.kv_offload_gib: 0 GiB holds no block on each rank: nothing is offloaded"
    assert f"warning: {warning}" in said
    assert json.loads(printed)["warnings"][0].startswith(warning)


@pytest.mark.skipif(not (SHARED / "traces").exists(), reason="recorded traces are not here")
def test_a_recorded_trace_replaces_the_workload(tmp_path):
    file = min((SHARED / "traces" / "kv-cache-tester").glob("*.json"), key=lambda p: p.stat().st_size)
    args = ["run", AGENTIC, "--out", str(tmp_path), "--no-plots", "--trace", str(file), "--limit", "6"]
    assert run(args) == 0
    summary = read(tmp_path)
    assert summary["requests_completed"] == 6
    assert 0 < summary["prefix_hit_rate"] < 1


# -- bad input ----------------------------------------------------------------------------------

BAD = {
    "key": (["--set", "engine.typo=1"], "--set engine.typo=1: unknown field"),
    "unit": (["--set", "engine.host_pool_gib=384GB"], "this field is in GiB, write 357.6"),
    "negative": (["--set", "engine.max_num_seqs=-3"], "-3 is not allowed, must be more than 0"),
    "model": (["--set", "model=glm-9"], "unknown model 'glm-9'; did you mean 'glm-5"),
    "node": (["--set", "node=9xh200"], "unknown node '9xh200'; did you mean '8xh200'"),
    "too long": (["--set", "engine.max_model_len=2M"], "longer than glm-5.3 allows, at most 1,048,576"),
    "does not start": (
        ["--mode", "resident", "--set", "engine.max_model_len=1M"],
        "needs 16,384 GPU blocks (52.68 GiB); the pool has 8,149 free",
    ),
    "host pool": (["--set", "engine.host_pool_gib=9999"], "more than the host memory of 8xh200, 2,048 GiB"),
    "model too large": (["--set", "node=8xh100"], "glm-5.3 does not fit on 8xh100"),
    "limit": (["--limit", "0"], "--limit: 0 is not allowed, must be more than 0"),
    "clients": (["--concurrency", "0"], "--concurrency: 0 is not allowed, must be more than 0"),
    "mode": (["--mode", "fast"], "--mode: 'fast' is not one of 'resident', 'offload' or 'hisparse'"),
    "no tables": (
        ["--set", "node=8xmi350x", "--mode", "resident"],
        "8xmi350x has no calibration profile: capacity only, no time",
    ),
    "amd": (["--set", "node=8xmi350x"], "engine.mode: HiSparse runs on NVIDIA GPUs only"),
    "no indexer": (["--set", "model=kimi-k2"], "kimi-k2 has no sparse-attention indexer"),
    "handover": (
        ["--mode", "offload", "--set", "cluster.prefill.instances=1"],
        "cluster.prefill: mode offload of vLLM 0.33: instances that decode what others prefill",
    ),
    "drafts": (["--set", "engine.mtp=1", "--set", "model=llama-3.1-8b"], "no MTP layer to draft with"),
    "version": (["--set", "engine.version=0.30"], "run simulates no indexer offload beside HiSparse"),
    "two nodes": (["--set", "engine.tp=16"], "16: run simulates a replica on one node"),
    "profile": (["--set", "calibration=mine"], "--set calibration=mine: mine: no such calibration profile"),
    "chunks": (
        ["--set", "engine.enable_chunked_prefill=false"],
        "engine.max_num_batched_tokens: 32,768 is less than max_model_len, 1,048,576",
    ),
    "prefix": (
        ["--set", "workload.shared_prefix_tokens=1M"],
        "1048576 shared tokens in a prompt of 74160; give at most 74160",
    ),
    "no trace": (["--trace", "nowhere"], "nowhere: no such file or folder"),
    "seed": (["--seed", "-1"], "--seed: -1 is not allowed, must be at least 0"),
    "not a number": (["--limit", "few"], "--limit"),
}


def refused(capsys, *args: str) -> str:
    """What a refused run says: one line, exit code 2, nothing on stdout."""
    assert run(["run", *args]) == 2
    printed, said = capsys.readouterr()
    assert printed == ""
    # Of what was said before, only the capacity may stand above the error.
    assert said.splitlines()[-1].startswith("error: ")
    assert said.count("error") == 1
    return said.splitlines()[-1]


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_leaves_nothing(case, tmp_path, capsys):
    args, said = BAD[case]
    assert said in refused(capsys, AGENTIC, "--out", str(tmp_path / "out"), *args)
    assert not list(tmp_path.iterdir())


def test_an_unknown_scenario_and_a_missing_folder_are_refused(tmp_path, capsys):
    assert "unknown scenario 'nothing'" in refused(capsys, "nothing", "--out", str(tmp_path / "out"))
    assert "Missing option '--out'" in refused(capsys, AGENTIC)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"id": "x", "block_size": 64, "requests": []}', "holds no requests"),
        ('{"id": "x", "block_size": 64, "requests": [{"t": 0', "is not whole JSON (cut short?)"),
        ("", "cut short"),
    ],
)
def test_a_trace_that_is_empty_or_cut_short_is_refused(content, said, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    trace.write_text(content)
    message = refused(capsys, AGENTIC, "--out", str(tmp_path / "out"), "--trace", str(trace))
    assert said in message
    assert str(trace) in message
    assert names(tmp_path) == {"trace.json"}


def test_an_empty_folder_is_no_trace(tmp_path, capsys):
    (tmp_path / "traces").mkdir()
    message = refused(capsys, AGENTIC, "--out", str(tmp_path / "out"), "--trace", str(tmp_path / "traces"))
    assert "traces" in message
    assert names(tmp_path) == {"traces"}


@pytest.mark.parametrize(("tokens", "caching"), [(640, "true"), (640, "false"), (40, "true"), (40, "false")])
def test_hashes_that_fit_no_block_are_refused(tokens, caching, tmp_path, capsys):
    # Whether or not anything will ever ask for them.
    hashes = list(range(-(-tokens // 64)))
    request = {"t": 0, "type": "n", "in": tokens, "out": 1, "hash_ids": hashes}
    session = {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [request]}
    (tmp_path / "trace.json").write_text(json.dumps(session))
    args = ["--trace", str(tmp_path / "trace.json"), "--set", "engine.block_size=48"]
    args += ["--set", f"engine.enable_prefix_caching={caching}"]
    message = refused(capsys, AGENTIC, "--out", str(tmp_path / "out"), *args)
    assert "--set engine.block_size=48: hashes of 64 tokens do not fit blocks of 48" in message
    assert names(tmp_path) == {"trace.json"}


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nothing", "x" * 300])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(place, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = place if place.startswith("/") else str(tmp_path / place)
    message = refused(capsys, AGENTIC, "--out", out)
    assert message.startswith(f"error: --out {out}: results cannot be written here (")
    assert names(tmp_path) == {"file"}


# -- Ctrl-C and terminals -----------------------------------------------------------------------

LONG = [*SMALL[:2], "--set", "workload.conversations=1000000", *SMALL[4:]]
"""More than anybody waits for."""


def start(*args: str, **streams) -> subprocess.Popen:
    # Tests may run in the background, where interrupts are ignored.
    call = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    call += "from hisparse_sim.cli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", call, "run", *args], **streams)


def wait_for(process: subprocess.Popen, text: str) -> None:
    """Until ``text`` stands in its stderr."""
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"{text!r} was never said")


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX ones")
def test_ctrl_c_leaves_what_was_done_marked_incomplete(tmp_path):
    out = tmp_path / "out"
    process = start(AGENTIC, "--out", str(out), "--json", *LONG, stdout=-1, stderr=-1, text=True)
    wait_for(process, "HiSparse steady-state")  # the last line before the run
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert f"{out} holds what was done" in said
    assert names(out) == FILES
    summary = read(out)
    assert json.loads(printed) == summary
    assert summary["complete"] is False
    assert summary["sim_time_s"] > 0
    requests = pd.read_parquet(out / "requests.parquet")
    assert "completed" in set(requests["status"]) <= {"completed", "incomplete"}
    under_way = requests[requests["status"] == "incomplete"]
    # Two clients ask at a time, and none if the signal falls between two turns.
    assert len(under_way) == summary["requests_incomplete"] <= 2
    assert under_way["finish_s"].isna().all()
    assert (under_way["reason"] == "still under way when the run was interrupted").all()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX ones")
def test_ctrl_c_while_plotting_leaves_the_results_and_no_half_picture(tmp_path, monkeypatch, capsys):
    from hisparse_sim.report import plots

    whole = plots.save_plots

    def pressed(runs, folder):
        whole(runs, folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr(plots, "save_plots", pressed)
    assert run(["run", AGENTIC, "--out", str(tmp_path), *SMALL]) == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        f"{tmp_path} holds the whole run; hisparse-sim plot {tmp_path} draws it",
        "interrupted",
    ]
    assert names(tmp_path) == FILES
    assert read(tmp_path)["complete"] is True


@pytest.mark.skipif(os.name != "posix", reason="terminals are POSIX ones")
def test_a_terminal_sees_a_bar_and_a_pipe_does_not(tmp_path):
    ours, theirs = pty.openpty()
    process = start(
        AGENTIC,
        "--out",
        str(tmp_path),
        "--no-plots",
        "--concurrency",
        "4",
        stdout=-1,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not more:
            break
        shown += more
    os.close(ours)
    assert process.wait(timeout=30) == 0
    assert b"s simulated" in shown
    assert b" of 104 requests" in shown  # 8 conversations of 13 turns
    assert b"ETA" in shown
    printed = process.stdout.read()
    process.stdout.close()
    assert b"simulated\x1b" not in printed
    assert b"running requests, mean" in printed
