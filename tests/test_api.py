"""The package in Python is as short as the command line."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hisparse_sim as hs

SMALL = {"concurrency": 3, "limit": 12}


@pytest.fixture(scope="module")
def runs() -> tuple[hs.Run, hs.Run]:
    first = hs.simulate(hs.scenario("agentic-13turn-8xh200", {"engine.host_pool_gib": 256}, **SMALL))
    return first, hs.simulate(hs.scenario("agentic-13turn-8xh200", mode="offload", **SMALL))


def test_a_run_shows_itself_as_text_as_html_and_as_pictures(
    runs: tuple[hs.Run, hs.Run], tmp_path: Path
) -> None:
    run = runs[0]
    assert run.scenario.engine.host_pool_gib == 256
    assert len(run.requests) == run.summary["requests_completed"] == 12
    assert run.steps["steps"].sum() == run.summary["engine_steps"]
    assert "running requests, mean" in repr(run)
    assert "<td>" in run._repr_html_()
    for name in ("timeline", "gantt", "latency"):
        assert run.plot(name).get_axes()
    assert (run.save(tmp_path / "run") / "summary.json").exists()


def test_runs_are_compared_side_by_side(runs: tuple[hs.Run, hs.Run]) -> None:
    both = hs.compare(*runs)
    assert list(both.table.columns) == ["agentic-13turn-8xh200\nhisparse", "agentic-13turn-8xh200\noffload"]
    assert both.table.loc["requests_completed"].tolist() == [12, 12]
    assert "hisparse" in repr(both)
    assert both._repr_html_().count("<th>") > 10
    assert both.plot("overlay").get_axes()
    same = hs.compare(runs[0], runs[0])
    assert len(set(same.table.columns)) == 2
    with pytest.raises(hs.HiSparseError, match="at least two"):
        hs.compare(runs[0])


def test_an_estimate_is_a_table() -> None:
    found = hs.estimate("glm-5.3", "8xh200", ["8k", "1M"], tp=8, kv_cache_dtype="fp8")
    assert found.table["context_tokens"].tolist() == [8192] * 3 + [1_048_576] * 3
    hisparse = found.table[found.table["mode"] == "hisparse"].set_index("context_tokens")["requests"]
    assert hisparse[8192] > hisparse[1_048_576] > 0
    assert "limit_words" in repr(found)
    assert "<table" in found._repr_html_()
    assert found.data["model"] == "glm-5.3"


def test_a_sweep_is_a_table_and_goes_on_in_its_folder(tmp_path: Path) -> None:
    base = hs.scenario("agentic-13turn-8xh200", limit=6)
    vary = {"workload.concurrency": [1, 2], "engine.mtp": [0, 3]}
    found = hs.sweep(base, vary, estimate_only=True)
    assert found[list(vary)].to_numpy().tolist() == [[1, 0], [1, 3], [2, 0], [2, 3]]
    kept = hs.sweep(base, vary, estimate_only=True, folder=tmp_path / "kept")
    again = hs.sweep(base, vary, estimate_only=True, folder=tmp_path / "kept")
    assert len(kept) == len(again) == 4


def test_a_saved_workload_plays_again_the_same(runs: tuple[hs.Run, hs.Run], tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    assert hs.save_workload(runs[1].scenario, path) >= 12
    again = hs.simulate(
        hs.scenario(
            "agentic-13turn-8xh200", {"workload": {"kind": "trace", "path": str(path)}}, mode="offload"
        )
    )
    assert again.summary["ttft_s"] == runs[1].summary["ttft_s"]
    with pytest.raises(hs.HiSparseError, match="ends in"):
        hs.save_workload(runs[1].scenario, tmp_path / "asked.txt")


def test_rooms_of_the_same_name_are_still_packages() -> None:
    import hisparse_sim.estimate.answer
    import hisparse_sim.scenario.loader

    assert callable(hisparse_sim.scenario.loader.load_scenario)
    assert callable(hisparse_sim.estimate.answer.answer)
    assert hs.scenario("stream-1m-8xh200").name == "stream-1m-8xh200"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: hs.scenario("nope"), "unknown scenario 'nope'"),
        (lambda: hs.scenario("stream-1m-8xh200", {"engine.magic": 1}), "magic"),
        (lambda: hs.estimate(context="much"), "not a number of tokens"),
        (lambda: hs.simulate("stream-1m-8xh200.txt"), "unknown scenario"),
    ],
)
def test_what_is_wrong_is_one_line(wrong: object, words: str) -> None:
    assert callable(wrong)
    with pytest.raises(hs.HiSparseError, match=words):
        wrong()


def test_a_picture_that_does_not_exist_is_named(runs: tuple[hs.Run, hs.Run]) -> None:
    with pytest.raises(hs.HiSparseError, match="is no picture; one of timeline"):
        runs[0].plot("magic")


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("numpy", "pandas", "pydantic", "simpy")
    code = f"import sys, hisparse_sim; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "simulate" in dir(hs)
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        hs.magic  # noqa: B018


def test_type_checkers_see_each_public_name_and_no_others() -> None:
    tree = ast.parse(Path(hs.__file__).read_text(encoding="utf-8"))
    # A ``__getattr__`` that they saw would make every misspelt name one of the module's.
    assert not [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
    ]
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(hs.__all__)
