"""Tables of tenants and priorities."""

from __future__ import annotations

from typing import Any

from hisparse_sim.report.group_tables import MOST_ROWS, group_tables
from hisparse_sim.report.tables import MAX_COLUMNS


def group(completed: int, ttft_s: float | None = 1.0) -> dict[str, Any]:
    spread = {"p50": ttft_s, "p95": None if ttft_s is None else 1234.5}
    return {
        "requests_completed": completed,
        "requests_failed": 12,
        "output_tokens_per_s": 123_456.7,
        "total_tokens_per_s": 1.0,
        **dict.fromkeys(("ttft_s", "e2e_s"), spread),
        "tpot_s": {"p50": 0.0567, "p95": 1.234},
        "goodput": None,
        "preemptions": 1_234,
        "prefix_hit_rate": 0.999,
    }


def test_without_groups_there_is_nothing_to_say() -> None:
    assert group_tables({}) == group_tables({"by_tenant": None, "by_priority": None}) == ""


def test_a_line_a_tenant_no_column_of_nothing_and_no_line_too_long() -> None:
    text = group_tables({"by_tenant": {"": group(1, None), "x" * 200: group(2), "gold": group(123_456)}})
    lines = text.splitlines()
    assert max(map(len, lines)) <= MAX_COLUMNS
    assert "goodput" not in text
    assert lines[0].startswith("tenant ")
    assert [line.split()[0][:6] for line in lines[3:]] == ["(none)", "xxxxxx", "gold"]


def test_priorities_that_are_the_tenants_own_are_not_said_again() -> None:
    both = {"by_tenant": {"gold": group(1), "free": group(2)}, "by_priority": {"0": group(2), "5": group(1)}}
    assert "priority" not in group_tables(both)
    both["by_priority"]["0"] = group(3)
    assert "\n\npriority " in group_tables(both)


def test_of_many_tenants_the_busiest_are_shown_and_the_others_counted() -> None:
    text = group_tables({"by_tenant": {str(n): group(n) for n in range(40)}})
    assert text.splitlines()[-1] == "and 28 more, in summary.json"
    assert [line.split()[0] for line in text.splitlines()[3:-1]] == [str(n) for n in range(28, 40)]
    assert MOST_ROWS == 12
