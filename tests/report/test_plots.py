"""Pictures and the quantities over time that they show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.report.compare import main
from hisparse_sim.report.plots import RunPicture, latency, save_plots, timeline
from hisparse_sim.report.series import TimeGrid

STEPS = {
    "start_s": [0.0, 2.0, 5.0],
    "end_s": [2.0, 4.0, 6.0],
    "running": [1, 3, 2],
    "waiting": [0, 0, 0],
    "preemptions": [0, 2, 1],
    "gpu_free_blocks": [75, 50, 100],
    "host_free_blocks": [0, 0, 0],
    "h2d_bytes": [0, 4_000_000_000, 0],
    "d2h_bytes": [0, 0, 0],
}
REQUESTS = {"ttft_s": [0.1, 0.9, np.nan], "tpot_s": [0.01, 0.02, np.nan], "e2e_s": [1.0, 30.0, np.nan]}


SUMMARY = {"scenario": "mine", "mode": "hisparse", "running_mean": 2.0, "pools": {"num_gpu_blocks": 100}}


def picture(rows: int = 3) -> RunPicture:
    return RunPicture(SUMMARY, pd.DataFrame(REQUESTS).iloc[:rows], pd.DataFrame(STEPS).iloc[:rows])


def panels(figure: object) -> dict[str, np.ndarray]:
    """Values of the first line of each panel, by the panel's title on one line."""
    return {
        axis.get_ylabel().replace("\n", " "): np.asarray(axis.get_lines()[0].get_ydata())
        for axis in figure.axes  # type: ignore[attr-defined]
    }


def test_a_mean_over_time_weighs_by_duration() -> None:
    grid = TimeGrid.over(6.0, intervals=3)
    start, end, value = (np.array(STEPS[name], dtype=float) for name in ("start_s", "end_s", "running"))
    assert grid.mean(start, end, value, hold=False).tolist() == [1.0, 3.0, 1.0]
    assert grid.mean(start, end, value, hold=True).tolist() == [1.0, 3.0, 2.5]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 100)), min_size=1, max_size=30),
    st.integers(1, 50),
)
def test_no_amount_is_lost_between_intervals(rows: list[tuple[float, float, float]], intervals: int) -> None:
    gaps, lengths, amounts = (np.array(column) for column in zip(*rows, strict=True))
    end = np.cumsum(gaps + lengths)
    grid = TimeGrid.over(float(end[-1]), intervals=intervals)
    rate = grid.rate_per_s(end - lengths, end, amounts)
    assert rate.sum() * grid.width_s == pytest.approx(amounts.sum(), abs=1e-6)
    assert (rate >= -1e-9).all()


def test_the_timeline_shows_what_happened_and_leaves_out_what_did_not() -> None:
    shown = panels(timeline([picture()]))
    assert list(shown) == [
        "running requests",
        "preemptions so far",
        "GPU KV in use, %",
        "host to GPU GB/s a GPU",
    ]
    assert shown["running requests"].max() == pytest.approx(3)
    assert shown["preemptions so far"][-1] == pytest.approx(3)
    assert shown["GPU KV in use, %"].max() == pytest.approx(50)
    assert shown["host to GPU GB/s a GPU"].max() == pytest.approx(2)


def test_latencies_are_those_of_completed_requests() -> None:
    figure = latency([picture()])
    (line,) = figure.axes[0].get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [0.1, 0.1, 0.9]
    assert np.asarray(line.get_ydata()).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_runs_of_any_length_are_drawn(tmp_path: Path, rows: int) -> None:
    written = save_plots([picture(rows=rows), picture()], tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["timeline.png", "timeline.svg", "latency.png", "latency.svg"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (save_plots([picture()], tmp_path / name) for name in "ab")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_folders_of_runs_are_compared_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for scenario in ("mine", "yours"):
        folder = tmp_path / scenario
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(SUMMARY | {"scenario": scenario}))
        pd.DataFrame(REQUESTS).to_parquet(folder / "requests.parquet")
        pd.DataFrame(STEPS).to_parquet(folder / "steps.parquet")
        folders.append(str(folder))
    assert main([*folders, "--plots", str(tmp_path / "plots")]) == 0
    assert capsys.readouterr().out.split()[:4] == ["mine", "yours", "hisparse", "hisparse"]
    assert len(list((tmp_path / "plots" / "yours").iterdir())) == 4
    assert main([*folders[:1], "--plots", str(tmp_path / "plots")]) == 0
    assert (tmp_path / "plots" / "timeline.svg").exists()


@pytest.mark.parametrize("summary", [None, "{", "[]"])
def test_a_folder_without_a_summary_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], summary: str | None
) -> None:
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'summary.json'}: ")
    assert len(said.splitlines()) == 1
