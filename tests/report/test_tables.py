"""Tables of runs side by side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.report.tables import grid, number, side_by_side

LATENCY = {"mean": 1.5, "p50": 1.0, "p90": 2.0, "p95": 3.25, "p99": 123.456}
FULL: dict[str, Any] = {
    "running_mean": 25.512,
    "waiting_mean": 6.5,
    "output_tokens_per_s": 241.7,
    "total_tokens_per_s_per_gpu": 10958.4,
    "ttft_s": LATENCY,
    "tpot_s": {key: value / 1e3 for key, value in LATENCY.items()},
    "itl_s": LATENCY,
    "e2e_s": LATENCY,
    "preemptions": 1065,
    "prefix_hit_rate": 0.91234,
    "hot_hit_rate": 0.93,
    "gpu_kv_usage_mean": 0.5,
    "gpu_kv_usage_max": 1.0,
    "host_usage_max": 0.25,
    "host_to_device_bytes": 4_000_000_000_000,
    "device_to_host_bytes": 500_000_000,
    "requests_completed": 832,
    "requests_failed": 0,
    "goodput": None,
    "verdict": "backlogged",
    "sim_time_s": 800.0,
    "limit": "prefill: max_num_batched_tokens a step (76 % of the time)",
}


def row(table: str, title: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(title))


def test_each_figure_of_a_summary_has_its_line_in_human_units() -> None:
    table = side_by_side([("scenario\nhisparse", FULL)])
    assert row(table, "running requests").endswith("25.5")
    assert row(table, "TTFT").endswith("1 / 3.25 / 123")
    assert row(table, "TPOT").endswith("1 / 3.25 / 123")
    assert row(table, "prefix hits").endswith("91.2")
    assert row(table, "HBM KV").endswith("50.0 / 100.0")
    assert row(table, "host to GPU").endswith("4,000 / 5")
    assert row(table, "GPU to host").endswith("0.5 / 0.000625")
    assert row(table, "requests done").endswith("832 / 0")


def test_what_no_run_has_gets_no_line_and_what_one_lacks_a_dash() -> None:
    table = side_by_side([("a", FULL), ("b", FULL | {"hot_hit_rate": None})])
    assert "goodput" not in table
    assert row(table, "hot-buffer hits").split()[-2:] == ["93.0", "-"]


def test_a_run_that_is_not_over_says_so() -> None:
    part = FULL | {"complete": False, "requests_incomplete": 5511}
    table = side_by_side([("over", FULL | {"complete": True, "requests_incomplete": 0}), ("not", part)])
    assert row(table, "not complete: under way").split()[-2:] == ["-", "5,511"]
    assert "not complete" not in side_by_side([("over", FULL)])


def test_a_run_in_which_nothing_completed_is_shown_whole() -> None:
    nothing = dict.fromkeys(LATENCY)
    summary = {"ttft_s": nothing, "tpot_s": None, "requests_completed": 0, "requests_failed": 32}
    table = side_by_side([("a", summary)])
    assert row(table, "requests done").endswith("0 / 32")
    assert "TTFT" not in table


def test_a_summary_of_nothing_is_an_empty_table() -> None:
    assert set(side_by_side([("a", {})])) <= set("a -\n")
    assert side_by_side([]).strip(" -\n") == ""


@given(st.integers(1, 9))
def test_any_number_of_runs_fits_a_page(runs: int) -> None:
    table = side_by_side([("agentic-13turn-8xh200\nhisparse", FULL)] * runs)
    assert max(len(line) for line in table.splitlines()) <= 110
    assert "of the time)" in " ".join(table.split())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (1234567, "1,234,567"),
        (10958.4, "10,958"),
        (999.6, "1,000"),
        (25.512, "25.5"),
        (0.0312, "0.0312"),
        (0.0000123, "1.2e-05"),
    ],
)
def test_numbers_have_three_digits_and_no_more_noise(value: float | None, text: str) -> None:
    assert number(value) == text


def test_columns_line_up() -> None:
    text = grid([("", ["one", "b"])], [("x", ["1", "22"]), ("longer", ["3", "4"])])
    assert text.splitlines() == [
        "        one   b",
        "------  ---  --",
        "x         1  22",
        "longer    3   4",
    ]
