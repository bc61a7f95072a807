"""The benchmarks of scripts/bench show what they measured; nothing is measured here."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = ("commands", "scheduler", "plain", "long", "curve", "traces")


@pytest.fixture(autouse=True)
def _scripts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def bench(name: str) -> Any:
    return importlib.import_module(f"bench.{name}")


def usages(*cpu_s: float) -> list[Any]:
    return [bench("process").Usage(2 * s, s, 100 * s) for s in cpu_s]


def cells(table: str) -> list[list[str]]:
    """The rows below the head; all rows are as wide as that."""
    head, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert {len(row) for row in rows} == {len(head)} == {len(rule)}
    return rows


def test_each_benchmark_is_run_by_its_name() -> None:
    assert tuple(bench("__main__").BENCHMARKS) == NAMES


def test_a_spread_is_the_median_within_least_and_most() -> None:
    spread = bench("repeats").spread
    assert f"{spread([3.0, 1.0, 2.0]):.1f}" == "2.0 (1.0–3.0)"
    assert f"{spread([1.01, 1.02]):.1f}" == "1.0"


def test_cases_take_turns() -> None:
    setup = bench("setup").Setup(Path(), Path(), repeats=2)
    order: list[str] = []

    def case(name: str) -> int:
        order.append(name)
        return len(order)

    found = bench("repeats").alternate({"a": lambda: case("a"), "b": lambda: case("b")}, setup)
    assert order == ["a", "b", "a", "b"]
    assert found == {"a": [1, 3], "b": [2, 4]}


def test_commands_have_a_row_each() -> None:
    (row,) = cells(bench("commands").table({"--help": usages(0.5, 0.7, 0.6)}))
    assert row == ["`--help`", "1.20 (1.00–1.40)", "0.60 (0.50–0.70)", "60 (50–70)"]


def test_the_long_run_has_one_row() -> None:
    assert cells(bench("long").table(usages(1.5))) == [["3.00", "1.50", "150"]]


def test_scheduler_speeds_stand_beside_those_of_vllm() -> None:
    module = bench("scheduler")
    speeds = ([4600.0, 9200.0, 9200.0], [4600.0], [2300.0])
    hisparse, other = cells(
        module.table([module.Found("a", "hisparse", 4720, speeds), module.Found("b", "other", 10, speeds)])
    )
    assert hisparse == [
        "a",
        "4,720",
        "9,200 (4,600–9,200)",
        "4,600",
        "2,300",
        "13–23",
        "400–708",
    ]
    assert other[-2:] == ["not known", "–"]


def test_plain_speeds_stand_above_those_of_the_peer() -> None:
    module = bench("plain")
    found = {1_000: [module.Found(usages(2.0)[0], 0.5)]}
    ours, peer = cells(module.table(found))
    assert ours == ["1,000 requests", "2,000", "1.02", "2.00", "200"]
    assert peer[0] == "the peer"


def test_a_described_trace_has_a_speed_and_a_run_has_none() -> None:
    module = bench("traces")
    run, described = cells(
        module.table([module.Found("run", 0, usages(10.0)), module.Found("read", 10**9, usages(10.0))])
    )
    assert run == ["run", "20.0", "10.0", "–", "1000"]
    assert described[3] == "100"


def test_a_repeated_trace_has_later_times_and_ids_of_its_own(tmp_path: Path) -> None:
    line = {"timestamp": 12, "input_length": 600, "output_length": 5, "hash_ids": [0, 34]}
    source, target = tmp_path / "one.jsonl", tmp_path / "more.jsonl"
    source.write_text(json.dumps(line) + "\n")
    bench("traces").repeat_mooncake(source, target, 150)
    first, second = [json.loads(text) for text in target.read_text().splitlines()]
    assert first == {**line, "timestamp": 112, "hash_ids": [100, 134]}
    assert second == {**line, "timestamp": 212, "hash_ids": [200, 234]}


def test_the_curve_has_a_row_a_size_and_a_picture(tmp_path: Path) -> None:
    module = bench("curve")
    found = {
        size: module.Found(module.Counts(100, 200, 300), bench("repeats").spread([0.1, 0.2, 0.4]))
        for size in module.sizes()
    }
    rows = cells(module.table(found))
    assert len(rows) == len(found) == len(module.MODES) * 8
    assert rows[0][3:] == ["300", "200", "100", "0.20 (0.10–0.40)", "2,000", "1,000"]
    bench("curve_picture").draw(module.panels(found), tmp_path / "curve")
    assert {path.name for path in tmp_path.iterdir()} == {"curve.png", "curve.svg"}


def test_what_cannot_be_measured_says_why() -> None:
    main, setup = bench("__main__"), bench("setup").Setup(Path(), Path())
    for name in ("scheduler", "traces"):
        assert f"--{'golden' if name == 'scheduler' else 'traces'}" in main.section(name, setup)
