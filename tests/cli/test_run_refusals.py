"""What ``run`` refuses before it simulates: odd paths, folders in the way of files, contradictions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hisparse_sim.cli import main as cli
from hisparse_sim.cli.run import PLOTS
from hisparse_sim.errors import InputError
from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.workload import SeededWorkload
from hisparse_sim.simulation.result import FILES

RUN = ["run", "agentic-13turn-8xh200", "--concurrency", "2", "--limit", "2"]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that these arguments lead to."""
    assert cli.run(list(argv)) == 2
    printed, said = capsys.readouterr()
    assert not printed and said.startswith("error: ") and said.count("\n") == 1
    return said


@pytest.mark.parametrize("name", [*FILES, *PLOTS])
def test_a_folder_in_the_place_of_a_file_is_named_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).mkdir()
    assert str(tmp_path / name) in refused(capsys, *RUN, "--out", str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("target", ["loop", "nowhere"])
def test_a_link_that_leads_nowhere_is_no_folder_for_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (tmp_path / "loop").symlink_to(target)
    assert "results cannot be written here" in refused(capsys, *RUN, "--out", str(tmp_path / "loop"))


@pytest.mark.parametrize("flag", ["--out", "--trace"])
def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    more = [] if flag == "--out" else ["--out", str(tmp_path)]
    assert f"'{flag}': is empty" in refused(capsys, *RUN, flag, "", *more)


@pytest.mark.parametrize("path", ["", " ", "a\0b"])
def test_an_empty_path_of_a_trace_is_not_the_current_folder(path: str) -> None:
    with pytest.raises(InputError, match="is no path; name a file or folder"):
        build(SeededWorkload, {"workload": {"kind": "trace", "path": path}}, file="")


def test_an_empty_name_is_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no name" in refused(capsys, "workload", "describe", "")


def test_a_pipe_or_device_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", Path("/dev/zero")):
        for more in ([], ["--trace-format", "kv-cache-tester"]):
            said = refused(capsys, *RUN, "--trace", str(path), *more, "--out", str(tmp_path / "o"))
            assert f"{path}: is neither a file nor a folder" in said


def test_a_pipe_in_a_folder_of_sessions_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "s.json")
    said = refused(capsys, *RUN, "--trace", str(tmp_path), "--out", str(tmp_path / "o"))
    assert "neither a file nor a folder" in said


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        (["--mode", "resident"], "engine.mode=offload"),
        (["--mode", "resident"], "engine={mode: offload}"),
        (["--seed", "3"], "seed=4"),
        ([], "workload.concurrency=3"),
        ([], "workload.limit=3"),
        (["--trace", "a.csv"], "workload.path=b.csv"),
        (["--trace", "a.csv", "--trace-scale", "2"], "workload.time_scale=3"),
    ],
)
def test_a_flag_and_a_setting_that_disagree_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: list[str], setting: str
) -> None:
    said = refused(capsys, *RUN, *flag, "--set", setting, "--out", str(tmp_path))
    assert f"--set {setting}: sets " in said and "give one of them" in said


@pytest.mark.parametrize(
    ("flag", "setting", "field"),
    [
        (["--mode", "resident"], "engine={max_num_seqs: 8}", "mode"),
        (["--limit", "3"], "workload={kind: agentic-coding, concurrency: 2}", "limit"),
    ],
)
def test_a_setting_that_would_lose_a_flag_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: list[str], setting: str, field: str
) -> None:
    said = refused(capsys, *RUN, *flag, "--set", setting, "--out", str(tmp_path))
    assert f"and {' '.join(flag)} with it; say {field} there, too" in said


def test_a_flag_and_a_setting_that_agree_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*RUN, "--set", "workload.concurrency=2", "--set", "workload.first_prompt_tokens=4000"]
    assert cli.run([*argv, "--no-plots", "--out", str(tmp_path)]) == 0


def test_flags_of_workload_are_compared_too(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["workload", "describe", "agentic-13turn-8xh200", "--seed", "3", "--set", "seed=4"]
    assert "--seed 3" in refused(capsys, *argv)
