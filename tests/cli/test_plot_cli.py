"""``hisparse-sim plot``: what it writes, and what it says of folders that it cannot use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from hisparse_sim.cli import main as cli
from hisparse_sim.report.run_files import REQUEST_COLUMNS, STEP_COLUMNS

RUN = {"scenario": "mine", "mode": "offload", "pools": {"num_gpu_blocks": 101, "num_host_blocks": None}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run of two requests."""
    return make(tmp_path / "run")


def make(path: Path, rows: int = 2, **more: object) -> Path:
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(RUN | more))
    requests = pd.DataFrame({name: [1.0, 2.0] for name in REQUEST_COLUMNS})
    requests.assign(request_id=["a", "b"], status="completed").to_parquet(path / "requests.parquet")
    steps = pd.DataFrame({name: [1, 2] for name in STEP_COLUMNS}).assign(start_s=[0.0, 1.0])
    steps.iloc[:rows].to_parquet(path / "steps.parquet")
    return path


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The one line that a refused call prints."""
    assert cli.run(["plot", *map(str, argv)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    return line


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_pictures_of_one_run_lie_beside_its_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(folder)
    assert cli.run(["plot", str(folder), "--format", "png"]) == 0
    made = ["timeline.png", "gantt.png", "latency.png"]
    assert capsys.readouterr().out.splitlines() == [str(folder / name) for name in made]
    assert names(folder) - before == set(made)


def test_what_is_drawn_can_be_chosen(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "er"
    assert cli.run(["plot", str(folder), "--out", str(out), "--only", "latency", "--format", "svg"]) == 0
    assert names(out) == {"latency.svg"}
    assert cli.run(["plot", str(folder), "--out", str(out), "--only", "gantt,overlay", "--format=png"]) == 0
    assert names(out) == {"latency.svg", "gantt.png", "overlay.png"}


def test_several_runs_are_drawn_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = make(tmp_path / "other", rows=0)
    assert cli.run(["plot", str(folder), str(other), "--format", "png"]) == 0
    assert names(tmp_path / "plots") == {f"{n}.png" for n in ("timeline", "gantt", "latency", "overlay")}


def test_text_is_printed_and_nothing_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(folder)
    assert cli.run(["plot", "--text", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("mine, offload: 0 to 2 s")
    assert names(folder) == before


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing": (lambda f: (f / "steps.parquet").unlink(), "steps.parquet", "cannot be read (No such file"),
    "cut short": (lambda f: _cut(f / "steps.parquet"), "steps.parquet", "is not a whole Parquet file"),
    "empty": (lambda f: (f / "requests.parquet").write_bytes(b""), "requests.parquet", "is not a whole"),
    "half a summary": (lambda f: (f / "summary.json").write_text('{"a"'), "summary.json", "not whole JSON"),
    "another table": (
        lambda f: pd.DataFrame({"a": [1]}).to_parquet(f / "steps.parquet"),
        "steps.parquet",
        "has no column start_s, end_s",
    ),
    "words for numbers": (
        lambda f: pd.read_parquet(f / "steps.parquet").assign(running="x").to_parquet(f / "steps.parquet"),
        "steps.parquet",
        "column running holds",
    ),
    "no run": (
        lambda f: (f / "summary.json").unlink(),
        "summary.json",
        "give a folder that `hisparse-sim run",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_folder_is_refused_by_file_and_leaves_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    break_it, file, says = BROKEN[how]
    break_it(folder)
    before = names(folder)
    line = refused(capsys, folder, "--out", tmp_path / "out")
    assert line.startswith(f"error: {folder / file}: ") and says in line
    assert not (tmp_path / "out").exists()
    assert names(folder) == before


def test_a_run_of_nothing_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "run", rows=0, limit="1,001,000 tokens exceed max_model_len")
    line = refused(capsys, folder)
    assert line == (
        f"error: {folder}: nothing ran, so there is nothing to draw: 1,001,000 tokens exceed max_model_len"
    )


def test_an_interrupted_run_is_drawn_as_far_as_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "run", complete=False)
    assert cli.run(["plot", str(folder), "--text"]) == 0
    assert capsys.readouterr().out.startswith("mine, offload (not complete): 0 to 2 s")


def test_wrong_flags_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, folder, "--format", "gif") == "error: --format: 'gif' is none of png, svg"
    assert "--only: 'bars' is none of timeline, gantt" in refused(capsys, folder, "--only", "latency,bars")
    assert "DIR" in refused(capsys)


def test_a_place_that_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, folder, "--out", folder / "summary.json")
    assert line.startswith(f"error: {folder / 'summary.json'}: pictures cannot be written here")
