"""Differences of runs and sweeps come with what chance explains."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.report.differences import run_differences, sweep_differences


def requests(seed: int, slower: float = 1.0, sessions: int = 60) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"session": np.repeat([f"s{i}" for i in range(sessions)], 5)})
    each = np.repeat(random.lognormal(sigma=0.5, size=sessions), 5)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        frame[name] = slower * each * random.lognormal(sigma=0.1, size=len(frame))
    return frame


def test_a_run_against_itself_differs_by_nothing() -> None:
    for found in run_differences(requests(1), requests(1)):
        assert found.difference == 0
        assert found.clear is False


def test_what_is_half_as_slow_again_is_told_from_chance_and_chance_is_not() -> None:
    clear = {d.metric: d.clear for d in run_differences(requests(1), requests(2, slower=1.6))}
    assert clear["ttft_s.mean"] and clear["tpot_s.p50"]
    same = [d.clear for d in run_differences(requests(1), requests(3))]
    assert sum(map(bool, same)) <= 2


def test_intervals_are_wider_than_if_requests_of_a_session_were_independent() -> None:
    first, other = requests(1), requests(2)
    alone = [frame.assign(session=range(len(frame))) for frame in (first, other)]
    wide, narrow = run_differences(first, other)[0], run_differences(*alone)[0]
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)


def test_a_single_session_has_no_interval() -> None:
    found = run_differences(requests(1, sessions=1), requests(2, sessions=1))
    assert all(d.clear is None and math.isnan(d.low) for d in found)


def test_welchs_interval_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(4)
    a, b = random.normal(10, 1, 8), random.normal(11, 3, 6)
    frames = [pd.DataFrame({"status": "done", "x": 1, "m": v}) for v in (a, b)]
    (found,) = sweep_differences(*frames, fields=["x"], metrics=["m"])
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    # The table of t takes the whole degrees of freedom below.
    assert found.low == pytest.approx(expected.low, abs=0.15)
    assert found.high == pytest.approx(expected.high, abs=0.15)
    assert found.low <= expected.low


SMALL = ["--set", "workload.turns=2", "--set", "workload.first_prompt_tokens=4000"]


def test_runs_and_sweeps_are_compared_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = "agentic-13turn-8xh200"
    for mode in ("hisparse", "resident"):
        words = [scenario, *SMALL, "--set", f"engine.mode={mode}"]
        assert run(["run", *words, "--set", "workload.concurrency=4", "--out", str(tmp_path / mode)]) == 0
        vary = ["--vary", "workload.concurrency=1,4", "--estimate"]
        assert run(["sweep", *words, *vary, "--out", str(tmp_path / f"s-{mode}")]) == 0
    capsys.readouterr()
    assert run(["compare", str(tmp_path / "hisparse"), str(tmp_path / "resident")]) == 0
    said = capsys.readouterr().out
    assert "95 % interval" in said and "tpot_s.mean" in said
    sweeps = [str(tmp_path / f"s-{mode}") for mode in ("hisparse", "resident")]
    assert run(["compare", *sweeps, "--out", str(tmp_path / "drawn")]) == 0
    assert "concurrency 4" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "drawn").iterdir()} == {"compare.png", "compare.svg"}
    assert run(["compare", *sweeps, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["differences"].values()
    assert {d["metric"] for d in found} == {"requests", "tpot_s", "tokens_per_s"}
    assert run(["compare", sweeps[0], str(tmp_path / "resident")]) == 2
    assert "compare like with like" in capsys.readouterr().err
    assert run(["compare", sweeps[0]]) == 2
    assert "names one folder" in capsys.readouterr().err
    assert run(["compare", str(tmp_path / "no"), str(tmp_path / "nowhere")]) == 2
