"""What a run leaves while it goes on, and that this changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_runs import CONVERSATIONS, POISSON, scenario

from hisparse_sim.report.run_files import RunFolder
from hisparse_sim.report.run_picture import RunPicture
from hisparse_sim.simulation import columns
from hisparse_sim.simulation import run as running
from hisparse_sim.simulation.checkpoints import SHARE, Checkpoints
from hisparse_sim.simulation.result import FILES, SO_FAR, Result
from hisparse_sim.simulation.run import simulate

SAME = sorted({*FILES} - {"timing.json"})
MODES = ["resident", "offload", "hisparse"]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is looked at after every few events, and pieces of the tables are short."""
    monkeypatch.setattr(running, "_EVENTS", 7)
    monkeypatch.setattr(columns, "PIECE_ROWS", 8)


def always(write: Any) -> Checkpoints:
    """At every look."""
    return Checkpoints(write, 0.0, clock=lambda: 0.0)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("work", [CONVERSATIONS, POISSON], ids=["closed", "open"])
def test_a_run_with_checkpoints_ends_as_one_without(tmp_path: Path, mode: str, work: dict[str, Any]) -> None:
    blocks = 7000 if mode == "hisparse" else 130  # few, so that requests wait and are preempted
    asked = scenario(work, mode=mode, engine={"num_gpu_blocks": blocks, "max_model_len": 3800})
    written: list[int] = []

    def write(so_far: Result) -> None:
        so_far.write(tmp_path / "with")
        written.append(so_far.summary["engine_steps"])

    simulate(asked, checkpoints=always(write)).write(tmp_path / "with")
    simulate(asked).write(tmp_path / "without")
    assert len(set(written)) >= 8
    assert bytes_of(tmp_path / "with") == bytes_of(tmp_path / "without")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("mode", MODES)
def test_each_checkpoint_is_a_run_that_can_be_read_and_grows(tmp_path: Path, mode: str) -> None:
    seen: list[tuple[int, int, float]] = []

    def write(so_far: Result) -> None:
        so_far.write(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
        run = RunPicture.read(RunFolder(tmp_path))
        requests, steps, summary = run.requests, so_far.steps, run.summary
        assert summary["complete"] is False
        statuses = requests["status"].value_counts()
        assert set(statuses.index) <= {"completed", "incomplete"}
        assert statuses.get("completed", 0) == summary["requests_completed"]
        assert statuses.get("incomplete", 0) == summary["requests_incomplete"]
        assert (so_far.requests["reason"][requests["status"] == "incomplete"] == SO_FAR).all()
        assert steps["steps"].sum() == summary["engine_steps"]
        # Tokens of requests under way are counted up to the last step, their first one by its prefill.
        decoded = (so_far.requests["output_tokens"] - 1).clip(lower=0).sum()
        assert (steps["decodes"] * steps["steps"]).sum() == decoded
        assert not len(steps) or steps["end_s"].iloc[-1] <= summary["sim_time_s"]
        assert not (requests["finish_s"] > summary["sim_time_s"]).any()
        assert sum(summary["waiting_for_s"].values()) <= summary["sim_time_s"]
        json.dumps(summary, allow_nan=False)
        seen.append((len(requests), summary["engine_steps"], summary["sim_time_s"]))

    simulate(scenario(CONVERSATIONS, mode=mode), checkpoints=always(write))
    assert seen == sorted(seen) and seen[-1][1] > seen[0][1]


def test_files_that_are_replaced_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(scenario(CONVERSATIONS)).write(tmp_path)
    steps = RunFolder.steps

    def replaced(folder: RunFolder) -> Any:
        monkeypatch.setattr(RunFolder, "steps", steps)
        simulate(scenario(POISSON)).write(tmp_path)
        return steps(folder)

    monkeypatch.setattr(RunFolder, "steps", replaced)
    run = RunPicture.read(RunFolder(tmp_path))
    assert len(run.requests) == run.summary["requests_completed"] == 12


@pytest.mark.usefixtures("often")
def test_row_groups_end_after_so_many_rows_whenever_they_were_packed(tmp_path: Path) -> None:
    result = simulate(scenario(CONVERSATIONS))
    result.write(tmp_path)
    for name, rows in (("requests", 18), ("steps", len(result.steps))):
        file = pq.ParquetFile(tmp_path / f"{name}.parquet")
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        assert sum(sizes) == rows and set(sizes[:-1]) == {8} and 0 < sizes[-1] <= 8


def test_long_checkpoints_come_seldom() -> None:
    now_s, written = 0.0, []

    def write(_: object) -> None:
        nonlocal now_s
        written.append(now_s)
        now_s += 0.001 if len(written) < 3 else 6.0

    checkpoints = Checkpoints(write, 30.0, clock=lambda: now_s)
    while now_s < 1000:
        checkpoints.look(lambda: None)  # type: ignore[arg-type,return-value]
        now_s += 0.25
    long_s = 6.0 / SHARE
    assert written == pytest.approx([30, 60, 90, *(90 + long_s * n for n in range(1, 5))], abs=1)
