"""How many requests there will be: what a progress bar counts up to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.scenario.validate import build
from hisparse_sim.scenario.workload import SeededWorkload, TraceSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.request import Workload

TALK: dict[str, Any] = {
    "kind": "conversations",
    "first_prompt_tokens": 100,
    "new_tokens_per_turn": 10,
    "output_tokens": 5,
    "turns": {"kind": "uniform", "low": 1, "high": 9},
}


def generated(**workload: Any) -> Workload:
    return make_workload(build(SeededWorkload, {"workload": workload}, file="").workload, 0)


def expected(workload: Workload, *, after: int) -> int | None:
    """When so many sessions have begun."""
    lengths = [len(session.requests) for session in workload.sessions()]
    return workload.expected_requests(after, sum(lengths[:after]))


@pytest.mark.parametrize(
    "spec",
    [
        TALK | {"conversations": 200},
        {
            "kind": "agentic-coding",
            "sessions": 60,
            "subagents": {
                "share": 0.2,
                "first_prompt_tokens": 9,
                "new_tokens_per_turn": 9,
                "output_tokens": 9,
            },
        },
        {"kind": "documents", "sessions": 200},
    ],
    ids=lambda spec: spec["kind"],
)
def test_sessions_are_expected_to_be_as_those_before_them(spec: dict[str, Any]) -> None:
    workload = generated(**spec)
    count = sum(len(session.requests) for session in workload.sessions())
    sessions = spec.get("conversations") or spec["sessions"]
    assert workload.expected_requests(0, 0) is None
    assert expected(workload, after=sessions) == count
    assert expected(workload, after=sessions // 2) == pytest.approx(count, rel=0.3)


def test_single_requests_are_as_many_as_asked_for() -> None:
    lengths = {"prompt_tokens": 10, "output_tokens": 1}
    assert generated(kind="stream", requests=7, **lengths).expected_requests(0, 0) == 7
    arrivals = {"kind": "piecewise", "steps": [{"duration_s": 9, "rate_per_s": 2}]}
    assert generated(kind="open", arrivals=arrivals, **lengths).expected_requests(3, 3) is None


@pytest.mark.parametrize("played", [False, True])
@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"limit": 3},
        {"from_s": 2.0},
        {"from_s": 2.0, "to_s": 8.0, "repeat": 3},
        {"repeat": 2, "limit": 11},
    ],
    ids=str,
)
def test_of_a_trace_the_number_is_known(tmp_path: Path, cut: dict[str, Any], played: bool) -> None:
    rows = [
        {"arrival_s": t, "prompt_tokens": 10, "output_tokens": 1}
        | ({"session": "s", "delay_s": 1} if played else {})
        for t in range(10)
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = make_workload(TraceSpec(path=tmp_path / "t.jsonl", **cut), 0)
    sent = sum(len(session.requests) for session in workload.sessions())
    assert workload.expected_requests(0, 0) == min(sent, workload.limit or sent)


@pytest.mark.parametrize(("cut", "count"), [({}, 6), ({"limit": 4}, 4), ({"repeat": 2}, 12)], ids=str)
def test_of_recorded_sessions_too(tmp_path: Path, cut: dict[str, Any], count: int) -> None:
    for name in "ab":
        requests = [
            {"t": t, "type": "n", "in": 64, "out": 1, "hash_ids": [t], "think_time": 1} for t in range(3)
        ]
        session = {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": requests}
        (tmp_path / f"{name}.json").write_text(json.dumps(session))
    workload = make_workload(TraceSpec(path=tmp_path, **cut), 0)
    sent = sum(len(session.requests) for session in workload.sessions())
    assert workload.expected_requests(0, 0) == sent == count
