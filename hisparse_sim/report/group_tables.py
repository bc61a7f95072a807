"""Figures by tenant, priority and replica of one run, as small text tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hisparse_sim.report.tables import NOTHING, Summary, done_failed, grid, latency, number, percent, plain

MOST_ROWS = 12
_NAME = 24
Group = Mapping[str, Any]

_COLUMNS: tuple[tuple[str, Callable[[Group], str]], ...] = (
    ("done /\nfailed", done_failed),
    ("output\ntokens/s", plain("output_tokens_per_s")),
    ("TTFT, s\np50 / p95", latency("ttft_s", "p50", "p95")),
    ("TPOT, ms\np50 / p95", latency("tpot_s", "p50", "p95", scale=1e3)),
    ("E2E, s\np50 / p95", latency("e2e_s", "p50", "p95")),
    ("prefix\nhits, %", percent("prefix_hit_rate")),
    ("preemp-\ntions", plain("preemptions")),
    ("goodput,\n1/s", plain("goodput")),
)


def group_tables(summary: Summary) -> str:
    """A line a tenant, then one a priority and one a replica; empty where there is one of each only.

    At most ``MOST_ROWS`` lines a table, those with the most completed requests. Priorities that are the
    tenants' own are left out: they would say the same again.
    """
    tenants, priorities = summary.get("by_tenant") or {}, summary.get("by_priority") or {}
    if sorted(map(str, tenants.values())) == sorted(map(str, priorities.values())):
        priorities = {}
    groups = {"tenant": tenants, "priority": priorities, "replica": summary.get("by_replica") or {}}
    return "\n\n".join(_table(name, found) for name, found in groups.items() if found)


def _table(title: str, groups: Mapping[str, Group]) -> str:
    most = sorted(groups, key=lambda name: -groups[name]["requests_completed"])[:MOST_ROWS]
    rows = {name: [cell(groups[name]) for _, cell in _COLUMNS] for name in groups if name in most}
    shown = [i for i in range(len(_COLUMNS)) if any(cells[i] != NOTHING for cells in rows.values())]
    heads = [_COLUMNS[i][0].split("\n") for i in shown]
    header = [
        (title if not line else "", [head[line] if line < len(head) else "" for head in heads])
        for line in range(2)
    ]
    text = grid(header, [(_short(name), [cells[i] for i in shown]) for name, cells in rows.items()])
    left = len(groups) - len(rows)
    return text + (f"\nand {number(left)} more, in summary.json" if left else "")


def _short(name: str) -> str:
    return (name if len(name) <= _NAME else name[: _NAME - 1] + "…") or "(none)"
