"""A sweep leaves one row a point and seed, goes on where it stopped, and shares its folder with nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from small_sweeps import SMALL, base, choices, parts, sweep

from hisparse_sim.errors import InputError
from hisparse_sim.planning import row
from hisparse_sim.planning.point import key_of, make_points
from hisparse_sim.planning.sweep import run_sweep
from hisparse_sim.simulation.run import simulate


def test_pandas_reads_the_folder_with_a_row_a_point_and_seed(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "sweep"
    outcome = run_sweep(sweep(out, "workload.concurrency=1,2", "engine.mode=hisparse,resident", seeds=2))
    frame = pd.read_parquet(out)
    assert (outcome.computed, outcome.found, outcome.complete) == (8, 0, True)
    assert len(frame) == frame["key"].nunique() == 8
    assert set(zip(frame["workload.concurrency"], frame["engine.mode"], frame["seed"], strict=True)) == {
        (c, m, s) for c in (1, 2) for m in ("hisparse", "resident") for s in (0, 1)
    }
    assert frame["workload.concurrency"].dtype == "int64"
    assert set(frame["status"]) == {"done"}
    others = {f.name for f in out.iterdir()} - set(parts(out))
    assert others == {"_sweep.json", "_intervals.csv", ".lock"}


def test_a_row_holds_the_figures_of_its_run(tmp_path: Path) -> None:
    run_sweep(sweep(tmp_path, "workload.concurrency=2"))
    found = pd.read_parquet(tmp_path).iloc[0]
    summary = simulate(base()).summary
    for name in ("running_mean", "total_tokens_per_s_per_gpu", "sim_time_s", "verdict", "limit"):
        assert found[name] == summary[name]
    assert found["ttft_s.p95"] == summary["ttft_s"]["p95"]
    assert found["pools.num_gpu_blocks"] == summary["pools"]["num_gpu_blocks"]


def test_what_is_there_is_not_computed_again_and_more_values_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sweep(sweep(tmp_path, "workload.concurrency=1,2"))
    before = parts(tmp_path)
    again = run_sweep(sweep(tmp_path, "workload.concurrency=1,2,3", seeds=2))
    assert (again.computed, again.found) == (4, 2)
    after = parts(tmp_path)
    assert {name: after[name] for name in before} == before
    monkeypatch.setattr(row, "_run", lambda _: pytest.fail("simulated twice"))
    assert run_sweep(sweep(tmp_path, "workload.concurrency=1,2,3", seeds=2)).computed == 0


def test_the_key_is_of_all_that_the_result_depends_on_and_not_of_the_name() -> None:
    one = base()
    renamed = one.model_copy(update={"name": "other", "description": "words"})
    assert key_of(one, "run") == key_of(renamed, "run") != key_of(one, "estimate")
    assert key_of(one.model_copy(update={"seed": 7}), "run") != key_of(one, "run")
    assert len(make_points(one, choices("engine.max_num_seqs=8,8.0"), seeds=1, kind="run")) == 1


def test_a_point_that_would_not_start_is_a_row_that_says_why(tmp_path: Path) -> None:
    varied = ("engine.host_pool_gib=20,9000", "engine.max_model_len=1000000")
    run_sweep(sweep(tmp_path, *varied))
    frame = pd.read_parquet(tmp_path).set_index("engine.host_pool_gib")
    assert frame.loc[20, "status"] == "refused"
    assert "host blocks" in frame.loc[20, "error"]
    assert "more than the host memory" in frame.loc[9000, "error"]
    assert pd.isna(frame.loc[9000, "running_mean"])


def test_estimates_are_swept_the_same_way(tmp_path: Path) -> None:
    of = base("engine.host_pool_gib=384")
    outcome = run_sweep(
        sweep(
            tmp_path,
            "workload.concurrency=1..64:log",
            "engine.mode=hisparse,resident",
            of=of,
            kind="estimate",
        )
    )
    frame = pd.read_parquet(tmp_path)
    assert outcome.complete
    assert len(frame) == 14
    assert len(parts(tmp_path)) == 1
    # As `estimate --context 86056` says.
    assert frame.groupby("engine.mode")["requests"].first().to_dict() == {"hisparse": 42, "resident": 6}
    tpot = frame[frame["engine.mode"] == "hisparse"].sort_values("workload.concurrency")["tpot_s"]
    assert tpot.is_monotonic_increasing


def test_workers_give_what_this_process_gives(tmp_path: Path) -> None:
    vary = ("workload.concurrency=1,2,3",)
    run_sweep(sweep(tmp_path / "one", *vary))
    run_sweep(sweep(tmp_path / "two", *vary, jobs=2))
    one, two = (pd.read_parquet(tmp_path / name).sort_values("key") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one.reset_index(drop=True), two.reset_index(drop=True))


def test_a_file_that_is_not_whole_is_put_aside_and_its_points_computed_again(tmp_path: Path) -> None:
    run_sweep(sweep(tmp_path, "workload.concurrency=1,2"))
    name = min(parts(tmp_path))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    (tmp_path / ".part-left").write_bytes(b"x")
    again = run_sweep(sweep(tmp_path, "workload.concurrency=1,2"))
    assert (again.computed, again.broken) == (1, (name,))
    assert (tmp_path / f"_broken-{name}").exists()
    assert not (tmp_path / ".part-left").exists()
    assert len(pd.read_parquet(tmp_path)) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.0.1"}, 'version is "0.0.1" there'),
        ({"schema": "x"}, "schema"),
        ({"kind": "estimate"}, 'kind is "estimate" there and "run" here'),
        ({"varied": {"engine.tp": "int64"}}, "varied.engine.tp"),
    ],
)
def test_a_folder_of_another_sweep_is_refused_and_left_alone(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    run_sweep(sweep(tmp_path, "workload.concurrency=1"))
    about = tmp_path / "_sweep.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | change))
    before = parts(tmp_path)
    with pytest.raises(InputError, match=said):
        run_sweep(sweep(tmp_path, "workload.concurrency=1,2"))
    assert parts(tmp_path) == before


def test_another_scenario_names_the_field_that_differs(tmp_path: Path) -> None:
    run_sweep(sweep(tmp_path, "workload.concurrency=1"))
    other = base(*SMALL, "engine.max_num_seqs=9")
    with pytest.raises(InputError, match=r"engine\.max_num_seqs is 256 there and 9 here"):
        run_sweep(sweep(tmp_path, "workload.concurrency=1", of=other))


def test_parquet_files_of_somebody_else_are_not_mixed_with(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "theirs.parquet")
    with pytest.raises(InputError, match="of no sweep"):
        run_sweep(sweep(tmp_path, "workload.concurrency=1"))
    assert {f.name for f in tmp_path.iterdir() if f.suffix} == {"theirs.parquet"}
