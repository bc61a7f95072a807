"""``hisparse-sim report``: what is on the page, and what it says of folders that it cannot use."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hisparse_sim.cli.main import run as command
from hisparse_sim.report.page.over_time import MOST_INTERVALS, over_time
from hisparse_sim.report.run_files import REQUEST_COLUMNS, STEP_COLUMNS
from hisparse_sim.report.run_picture import RunPicture
from hisparse_sim.report.series import TimeGrid
from hisparse_sim.simulation.schema import SCHEMA


def data_of(page: Path) -> dict[str, Any]:
    """What the scripts of a page work with."""
    (packed,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    found: dict[str, Any] = json.loads(packed)
    return found


def copy(run: Path, to: Path, **changed: object) -> Path:
    shutil.copytree(run, to)
    file = to / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    return to


def test_a_page_has_the_question_the_answer_and_what_limits(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    assert command(["report", str(runs["hisparse"]), "-o", str(page)]) == 0
    html = page.read_text()
    summary = json.loads((runs["hisparse"] / "summary.json").read_text())
    assert "zai-org/GLM-5.3-FP8" in html and "8 × H200" in html and "4 clients" in html
    assert f"{summary['requests_completed']} requests done" in html
    assert summary["limit"][1:] in html.replace("&amp;", "&")
    assert all(warning in html for warning in summary["warnings"])


def test_a_page_names_what_differs_between_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert command(["report", *map(str, runs.values()), "-o", str(page)]) == 0
    html = page.read_text()
    assert re.search(r'engine\.mode</th><td data-v="hisparse"[^>]*>hisparse</td><td[^>]*>offload', html)
    assert "engine.tp</th>" not in html
    assert "Against hisparse" in html and "tpot_s.p95" in html
    assert [run["name"] for run in data_of(page)["runs"]] == ["hisparse", "offload"]


def test_the_same_runs_give_the_same_page(runs: dict[str, Path], tmp_path: Path) -> None:
    for name in "ab":
        assert command(["report", *map(str, runs.values()), "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_page_loads_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command(["report", str(runs["hisparse"]), "-o", str(page)])
    html = page.read_text()
    assert "default-src 'none'" in html
    assert not re.search(r'(?:src|href)="(?!#|data:,)', html)
    assert "@import" not in html and "url(" not in html


def test_names_of_peoples_files_are_no_html(runs: dict[str, Path], tmp_path: Path) -> None:
    odd = "</script><script>alert(1)</script>$title & co"
    changed: dict[str, object] = {"scenario": odd, "mode": odd, "limit": odd, "warnings": [odd]}
    folders = [copy(runs["offload"], tmp_path / name, **changed) for name in ("<i>one", "<i>two")]
    page = tmp_path / "page.html"
    assert command(["report", *map(str, folders), "-o", str(page)]) == 0
    html = page.read_text()
    assert "<script>alert" not in html and "<i>one" not in html
    assert data_of(page)["runs"][0]["name"] == "<i>one"


def test_runs_that_cannot_be_read_are_named_and_the_others_used(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = tmp_path / "failed"
    failed.mkdir()
    other = copy(runs["offload"], tmp_path / "other", schema="hisparse-sim/summary/9")
    cut = copy(runs["offload"], tmp_path / "cut")
    (cut / "steps.parquet").write_bytes((cut / "steps.parquet").read_bytes()[:500])
    page = tmp_path / "page.html"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "summary.json").write_text('{"pools": "of another tool", "warnings": 3}')
    folders = [failed, runs["hisparse"], other, cut, foreign, tmp_path / "nowhere"]
    assert command(["report", *map(str, folders), "-o", str(page)]) == 2
    shown = capsys.readouterr()
    assert shown.out == f"{page}\n"
    lines = shown.err.splitlines()
    assert len(lines) == 5 and all(line.startswith("error: ") for line in lines)
    for line, folder, why in zip(
        lines,
        (failed, other, cut, foreign, tmp_path / "nowhere"),
        ("No such file", "hisparse-sim/summary/9", "not a whole Parquet", "no summary that", "No such file"),
        strict=True,
    ):
        assert str(folder) in line and why in line
        assert str(folder) in page.read_text()
    assert len(data_of(page)["runs"]) == 1


def test_a_run_that_goes_on_says_so(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert (
        command(["report", str(copy(runs["offload"], tmp_path / "run", complete=False)), "-o", str(page)])
        == 0
    )
    assert "not complete" in page.read_text()


def test_without_any_run_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert command(["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(page)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "a") in line and str(tmp_path / "b") in line
    assert not page.exists()


def test_a_run_in_which_nothing_ran_is_shown_and_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = copy(runs["offload"], tmp_path / "idle", limit="longer than max_model_len", step_time_s={})
    steps = pd.read_parquet(idle / "steps.parquet").iloc[:0]
    steps.to_parquet(idle / "steps.parquet")
    page = tmp_path / "page.html"
    assert command(["report", str(idle), "-o", str(page)]) == 2
    assert "nothing ran: longer than max_model_len" in capsys.readouterr().err
    assert "Longer than max_model_len" in page.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "names no run"),
        (["{run}", "-o", "{tmp}"], "is a folder"),
        (["{run}"] * 13, "at most 12"),
        (["{run}", "-o", "{run}/summary.json/page.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str],
    says: str,
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [word.format(run=runs["offload"], tmp=tmp_path) for word in words]
    assert command(["report", *filled]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_long_run_makes_a_page_below_five_megabytes(tmp_path: Path) -> None:
    count = 300_000
    random = np.random.default_rng(0)
    seconds = random.exponential(3600 / count, count)
    ends = np.cumsum(seconds)
    steps = pd.DataFrame({name: random.integers(0, 1000, count) for name in STEP_COLUMNS})
    steps = steps.assign(
        start_s=ends - seconds, end_s=ends, hot_blocks=7, steps=1, decodes=5, prefill_tokens=3
    )
    requests = pd.DataFrame({name: random.random(20_000) for name in REQUEST_COLUMNS})
    folder = tmp_path / "run"
    folder.mkdir()
    steps.to_parquet(folder / "steps.parquet")
    requests.assign(request_id="r", session="s", status="completed").to_parquet(folder / "requests.parquet")
    pools = {"num_gpu_blocks": 3001, "num_host_blocks": 2001, "block_size": 64, "resident_groups": 1}
    summary = {"schema": SCHEMA, "scenario": "long", "mode": "hisparse", "pools": pools}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = tmp_path / "page.html"
    assert command(["report", str(folder), "-o", str(page)]) == 0
    assert 200_000 < page.stat().st_size < 5_000_000
    assert all(
        len(curve["mean"]) == MOST_INTERVALS for curve in data_of(page)["runs"][0]["curves"].values() if curve
    )


def test_what_an_interval_averages_away_stays_visible(runs: dict[str, Path]) -> None:
    frame = pd.read_parquet(runs["hisparse"] / "steps.parquet")
    summary = json.loads((runs["hisparse"] / "summary.json").read_text())
    requests = pd.read_parquet(runs["hisparse"] / "requests.parquet")
    found = over_time([RunPicture(summary, requests, frame)], [""])
    (run,) = found["runs"]
    curve = run["curves"]["Requests/running"]
    assert max(curve["high"]) == frame["running"].max()
    step_ms = 1e3 * (frame["end_s"] - frame["start_s"]) / frame["steps"]
    times = run["curves"]["Step time/step time"]
    assert max(v for v in times["high"] if v is not None) == pytest.approx(step_ms.max(), rel=1e-3)
    assert min(v for v in times["low"] if v is not None) == pytest.approx(step_ms.min(), rel=1e-3)
    assert run["end_s"] == pytest.approx(len(curve["mean"]) * run["dt_s"])


def test_extremes_are_of_all_rows_that_an_interval_touches() -> None:
    grid = TimeGrid.over(4.0, intervals=4)
    start, end = np.array([0.0, 0.5, 3.0]), np.array([0.5, 1.5, 4.0])
    least, most = grid.extremes(start, end, np.array([7.0, 2.0, 5.0]))
    np.testing.assert_array_equal(least, [2.0, 2.0, np.nan, 5.0])
    np.testing.assert_array_equal(most, [7.0, 2.0, np.nan, 5.0])


@pytest.mark.parametrize(
    "words", [["compare"], ["plot", "--text"], ["plot", "--only", "latency", "--out", "{tmp}"]]
)
def test_a_failed_run_among_others_is_named_and_the_others_are_shown(
    words: list[str], runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = tmp_path / "failed"
    failed.mkdir()
    one, other = runs["hisparse"], runs["offload"]
    filled = [word.format(tmp=tmp_path) for word in words]
    assert command([*filled, str(one), str(failed), str(other)]) == 2
    shown = capsys.readouterr()
    assert shown.out and str(failed) in shown.err and "Traceback" not in shown.err
    assert command([*filled, str(failed), str(failed)]) == 2
    assert capsys.readouterr().out == ""
