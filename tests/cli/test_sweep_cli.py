"""``hisparse-sim sweep`` as a user types it."""

from __future__ import annotations

import pandas as pd
import pytest

from hisparse_sim.cli.main import run

AGENTIC = "agentic-13turn-8xh200"
SMALL = ["--set", "workload.first_prompt_tokens=4000", "--set", "workload.limit=4"]


def swept(tmp_path, *words):
    return run(["sweep", AGENTIC, "--out", str(tmp_path / "out"), *SMALL, *words])


def test_it_leaves_a_dataset_and_prints_a_line_a_point(tmp_path, capsys):
    assert swept(tmp_path, "--vary", "workload.concurrency=1..4:log", "--seeds", "2") == 0
    printed, said = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0].split()[:2] == ["concurrency", "running"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "4"]
    assert "±" in lines[1]
    assert said == f"6 of 6 points in {tmp_path / 'out'}\n"
    assert len(pd.read_parquet(tmp_path / "out")) == 6
    # Once more: all is there.
    assert swept(tmp_path, "--vary", "workload.concurrency=1..4:log", "--seeds", "2") == 0
    again, said = capsys.readouterr()
    assert again == printed
    assert said == f"6 of 6 points in {tmp_path / 'out'} (6 were there)\n"


def test_pairs_and_csv_files_give_their_points(tmp_path, capsys):
    both = ["--vary", "workload.concurrency=1,2", "--vary", "engine.max_num_seqs=4,8"]
    assert swept(tmp_path, *both, "--paired", "--estimate") == 0
    assert capsys.readouterr().err.startswith("2 of 2 points")
    (tmp_path / "points.csv").write_text("workload.concurrency,engine.max_num_seqs\n1,4\n2,8\n3,9\n")
    assert swept(tmp_path, "--csv", str(tmp_path / "points.csv"), "--estimate") == 0
    assert "3 of 3 points" in (said := capsys.readouterr().err)
    assert "(2 were there)" in said


def test_points_that_would_not_start_are_told_of(tmp_path, capsys):
    assert swept(tmp_path, "--vary", "engine.host_pool_gib=384,9000", "--estimate") == 0
    printed, said = capsys.readouterr()
    assert printed.splitlines()[-1].split()[-1] == "refused"
    assert "1 of the points would not start; one: engine.host_pool_gib: 9,000 GiB is more" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--vary: missing"),
        (["--vary", "engine.hots=1"], "--vary engine.hots=1: unknown field; did you mean 'hot_rows'"),
        (["--vary", "engine.tp=8,x"], "--vary engine.tp=x: 'x' is not a whole number"),
        (["--vary", "node=8xh200,dgx"], "--vary node=dgx: unknown node 'dgx'"),
        (["--vary", "engine.tp.x=1"], "--vary engine.tp.x: tp holds 8, which has no fields"),
        (["--vary", "seed=1,2", "--seeds", "2"], "--seeds: seed is varied, too"),
        (["--vary", "engine.tp=8", "--seeds", "0"], "--seeds: 0 is no number of seeds"),
        (["--vary", "engine.tp=8", "--jobs", "0"], "--jobs: 0 is no number of processes"),
        (["--vary", "engine.tp=8", "--backend", "slurm"], "--backend: 'slurm' is not known"),
        (["--vary", "engine.tp=8", "--address", "x:1"], "--address: is of a cluster"),
        (["--vary", "engine.tp=8", "--vary", "seed=1,2", "--paired"], "engine.tp has 1, seed has 2"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_left(tmp_path, capsys, words, said):
    assert swept(tmp_path, *words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert swept(tmp_path, "--vary", "workload.concurrency=1") == 2
    assert "results cannot be written here" in capsys.readouterr().err


SERVED = "vllm serve zai-org/GLM-5.3-FP8 -tp 8 -ep --max-model-len auto --kv-cache-dtype fp8"


def test_a_command_is_swept_over(tmp_path, capsys):
    served = ["--serve", f"{SERVED} --max-num-seqs 77", "--vary", "engine.max_num_batched_tokens=4096,8192"]
    assert swept(tmp_path, *served, "--estimate") == 0
    assert "note: " in capsys.readouterr().err  # what the command leaves open
    found = pd.read_parquet(tmp_path / "out")
    assert list(found["mode"].unique()) == ["resident"]
    assert found["requests"].max() <= 77


def test_a_command_needs_no_scenario(tmp_path, capsys):
    words = ["sweep", "--out", str(tmp_path / "out"), "--vary", "workload.concurrency=1,2", "--estimate"]
    assert run([*words, "--serve", SERVED]) == 0
    assert "no scenario given: workload and node of agentic-13turn-8xh200" in capsys.readouterr().err
    assert run(words) == 2
    assert "SCENARIO: missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--kv-transfer-config '{\"kv_connector\":\"HiSparseConnector\",\"kv_role\":\"kv_both\"}'",
         "hisparse-needs-host-pool"),
        ("--max-num-seqs 99999", "--serve: --max-num-seqs 99999"),
        ("--no-such-flag 3", "--no-such-flag"),
    ],
)  # fmt: skip
def test_a_command_that_would_not_start_is_refused_by_its_flag(tmp_path, capsys, flags, said):
    assert swept(tmp_path, "--serve", f"{SERVED} {flags}", "--vary", "workload.concurrency=1,2") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
