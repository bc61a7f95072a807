"""The timeline that Perfetto opens holds what the run's tables say."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.errors import InputError
from hisparse_sim.report import perfetto
from hisparse_sim.report.perfetto import events, write_timeline
from hisparse_sim.report.run_files import RunFolder
from hisparse_sim.report.run_picture import RunPicture


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "agentic"
    arguments = ["agentic-13turn-8xh200", "--concurrency", "8", "--limit", "40", "--no-plots", "--timeline"]
    assert run(["run", *arguments, "--out", str(out)]) == 0
    return out


def read(folder: Path) -> list[perfetto.Event]:
    document = json.loads((folder / "timeline.json").read_text(encoding="utf-8"))
    return list(document["traceEvents"])


def test_steps_and_tokens_are_all_there(done: Path) -> None:
    summary = json.loads((done / "summary.json").read_text(encoding="utf-8"))
    steps = [e for e in read(done) if e.get("cat") == "step"]
    assert sum(e["args"]["steps"] for e in steps) == summary["engine_steps"]
    ends = [e["ts"] + e["dur"] for e in steps]
    assert all(start["ts"] >= end - 1 for end, start in zip(ends, steps[1:], strict=False))
    assert max(ends) == pytest.approx(1e6 * summary["sim_time_s"], rel=1e-3)


def test_each_request_has_its_phases_on_a_line_where_nothing_overlaps(done: Path) -> None:
    spans = [e for e in read(done) if e.get("cat") == "request"]
    assert len({e["args"]["request"] for e in spans if e["name"] == "decode"}) == 40
    lines = defaultdict(list)
    for e in spans:
        lines[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert len(lines) <= 8
    for line in lines.values():
        line.sort()
        assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(line))


def test_pools_and_link_are_counters(done: Path) -> None:
    counters = {e["name"] for e in read(done) if e["ph"] == "C"}
    assert {"requests", "GPU blocks free", "host blocks free", "link out, GB/s"} <= counters


def test_a_long_run_is_drawn_coarser_and_loses_no_step(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = RunPicture.read(RunFolder(done))
    whole = list(events(picture))
    for name in ("MOST_STEPS", "MOST_SAMPLES", "MOST_SPANS"):
        monkeypatch.setattr(perfetto, name, 20)
    few = list(events(picture))
    assert len(few) < len(whole) / 5
    steps = [sum(e["args"]["steps"] for e in found if e.get("cat") == "step") for found in (whole, few)]
    assert steps[0] == steps[1]
    assert any("that lived longest of 40" in e["args"].get("name", "") for e in few)


def test_a_folder_that_cannot_be_written_is_named(done: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_timeline(RunPicture.read(RunFolder(done)), tmp_path / "absent")


def test_a_new_run_takes_the_timeline_of_the_old_one_away(tmp_path: Path) -> None:
    short = ["run", "agentic-13turn-8xh200", "--limit", "1", "--no-plots", "--out", str(tmp_path / "r")]
    assert run([*short, "--timeline"]) == 0
    assert (tmp_path / "r" / "timeline.json").exists()
    assert run(short) == 0
    assert not (tmp_path / "r" / "timeline.json").exists()
