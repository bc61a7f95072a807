"""Sessions with tools, sub-agents and tenants; documents; and the recorded coding agents."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import (
    AgenticCodingSpec,
    ConversationsSpec,
    DocumentsSpec,
    OpenSpec,
    PoissonSpec,
    StreamSpec,
    WorkloadSpec,
)
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.agentic import RECORDED
from hisparse_sim.workload.facts import describe
from hisparse_sim.workload.request import RequestSpec, Segment, Session

TALK: dict[str, Any] = {"first_prompt_tokens": 100, "new_tokens_per_turn": 10, "output_tokens": 5}


def sessions(spec: WorkloadSpec, seed: int = 0) -> list[Session]:
    return list(make_workload(spec, seed).sessions())


def covered(request: RequestSpec) -> int:
    return sum(segment.length for segment in request.content if isinstance(segment, Segment))


def in_common(one: RequestSpec, other: RequestSpec) -> int:
    """Tokens that two requests begin with alike."""
    total = 0
    for a, b in zip(one.content, other.content, strict=False):
        assert isinstance(a, Segment) and isinstance(b, Segment)
        if (a.stream, a.start) != (b.stream, b.start):
            break
        total += min(a.length, b.length)
        if a != b:
            break
    return total


def test_clients_ramp_up_one_after_the_other() -> None:
    starts = [s.start_s for s in sessions(ConversationsSpec(**TALK, concurrency=4, ramp_up_s=8))]
    assert starts == [0.0, 2.0, 4.0, 6.0, None, None, None, None]
    stream = StreamSpec(
        concurrency=2, requests=3, prompt_tokens=9, output_tokens=1, ramp_up_s=5, think_time_s=3
    )
    assert [(s.start_s, s.requests[0].delay_s) for s in sessions(stream)] == [(0, 0), (2.5, 0), (None, 3)]


def test_conversations_begin_at_arrivals() -> None:
    spec = ConversationsSpec(**TALK, conversations=3, arrivals={"kind": "even", "rate_per_s": 0.5})
    assert make_workload(spec, 0).concurrency is None
    assert [s.start_s for s in sessions(spec)] == [2.0, 4.0, 6.0]


def test_a_schedule_ends_the_workload() -> None:
    arrivals = {"kind": "piecewise", "steps": [{"duration_s": 10, "rate_per_s": 2}]}
    found = sessions(OpenSpec(arrivals=arrivals, prompt_tokens=5, output_tokens=1))
    assert 5 < len(found) < 50 and all(s.start_s is not None and s.start_s < 10 for s in found)


def test_a_poisson_workload_is_an_open_one() -> None:
    lengths: dict[str, Any] = {"prompt_tokens": 900, "output_tokens": 9, "length_jitter": 0.5}
    poisson = PoissonSpec(rate_per_s=3, requests=30, **lengths)
    other = OpenSpec(arrivals={"kind": "poisson", "rate_per_s": 3}, requests=30, **lengths)
    assert sessions(poisson, 4) == sessions(other, 4)


def test_tools_answer_sooner_than_people() -> None:
    tools = {"share": 0.8, "result_tokens": 1000, "time_s": 0.5}
    (session,) = sessions(
        ConversationsSpec(**TALK, conversations=1, concurrency=1, turns=500, think_time_s=60, tools=tools)
    )
    first, *rest = session.requests
    assert (first.prompt_tokens, first.delay_s) == (100, 0)
    kinds = Counter(
        (after.prompt_tokens - before.prompt_tokens - before.output_tokens, after.delay_s)
        for before, after in zip(session.requests, rest, strict=False)
    )
    assert set(kinds) == {(1000, 0.5), (10, 60)}
    assert kinds[1000, 0.5] / len(rest) == pytest.approx(0.8, abs=0.05)


def test_a_parent_waits_for_its_subagents() -> None:
    subagents = {
        "share": 1.0,
        "agents": 2,
        "turns": 3,
        "first_prompt_tokens": 50,
        "new_tokens_per_turn": 7,
        "output_tokens": 4,
        "shared_prefix_tokens": 20,
        "time_s": 2,
    }
    (session,) = sessions(
        ConversationsSpec(**TALK, conversations=1, concurrency=1, turns=2, subagents=subagents)
    )
    by_id = {r.id: r for r in session.requests}
    assert list(by_id) == [
        "conversation-0/1",
        *(f"conversation-0/1.{agent}/{turn}" for agent in (1, 2) for turn in (1, 2, 3)),
        "conversation-0/2",
    ]
    assert by_id["conversation-0/1.2/1"].after == ("conversation-0/1",)
    assert by_id["conversation-0/1.2/3"].after == ("conversation-0/1.2/2",)
    assert by_id["conversation-0/1.2/3"].delay_s == 2
    assert by_id["conversation-0/2"].after == (
        "conversation-0/1",
        "conversation-0/1.1/3",
        "conversation-0/1.2/3",
    )
    assert in_common(by_id["conversation-0/1.1/1"], by_id["conversation-0/1.2/1"]) == 20
    assert in_common(by_id["conversation-0/1"], by_id["conversation-0/2"]) == 105


def test_tenants_have_their_shares_prefixes_and_priorities() -> None:
    spec = OpenSpec(
        arrivals={"kind": "even", "rate_per_s": 1},
        requests=3000,
        prompt_tokens=100,
        output_tokens=1,
        shared_prefix_tokens=8,
        tenants=(
            {"name": "gold", "share": 3, "priority": -1, "shared_prefix_tokens": 40},
            {"name": "free", "share": 1, "priority": 5},
        ),
    )
    found = sessions(spec)
    by_tenant = {
        name: [s.requests[0] for s in found if s.tags["tenant"] == name] for name in ("gold", "free")
    }
    assert len(by_tenant["gold"]) / 3000 == pytest.approx(0.75, abs=0.03)
    assert {r.priority for r in by_tenant["gold"]} == {-1} and {r.priority for r in by_tenant["free"]} == {5}
    gold, free = by_tenant["gold"], by_tenant["free"]
    assert (in_common(gold[0], gold[1]), in_common(free[0], free[1]), in_common(gold[0], free[0])) == (
        40,
        8,
        0,
    )
    facts = describe(make_workload(spec, 0))
    assert facts["tenants"]["gold"] == pytest.approx(0.75, abs=0.03)
    assert set(facts["priorities"]) == {"-1", "5"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"concurrency": None}, "closed loop needs clients"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": 1}}, "conversations: missing; these arrivals never"),
        (
            {"arrivals": {"kind": "poisson", "rate_per_s": 1}, "conversations": 1, "ramp_up_s": 1},
            "ramp_up_s: is for a closed loop",
        ),
        ({"tenants": ({"name": "a"}, {"name": "a"})}, "two tenants have the name 'a'"),
        ({"tools": {"share": 2, "result_tokens": 1}}, "less than or equal to 1"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ConversationsSpec(**TALK, **wrong)


def test_a_tenants_prefix_longer_than_the_prompt_is_refused() -> None:
    spec = ConversationsSpec(**TALK, tenants=({"name": "a", "shared_prefix_tokens": 101},))
    with pytest.raises(InputError, match=r"workload\.tenants"):
        make_workload(spec, 0)


def test_a_document_is_the_same_whoever_asks() -> None:
    found = sessions(DocumentsSpec(sessions=300, concurrency=4, documents=5, shared_prefix_tokens=10))
    by_document: dict[object, set[int]] = {}
    for session in found:
        assert [r.after for r in session.requests] == [
            (),
            *((before.id,) for before in session.requests[:-1]),
        ]
        for before, after in zip(session.requests, session.requests[1:], strict=False):
            assert in_common(before, after) == before.prompt_tokens + before.output_tokens
        document = session.requests[0].content[1]
        assert isinstance(document, Segment)
        by_document.setdefault(document.stream, set()).add(document.length)
        assert 1 <= len(session.requests) <= 5
    assert len(by_document) == 5 and all(len(lengths) == 1 for lengths in by_document.values())
    first = Counter(s.requests[0].content[1] for s in found).most_common()
    assert first[0][1] > 2 * first[-1][1]


def test_documents_go_up_to_a_million_tokens() -> None:
    facts = describe(
        make_workload(DocumentsSpec(sessions=3000, concurrency=4, documents=3000, popularity=0), 0)
    )
    assert 1_000_000 < facts["prompt_tokens"]["max"] < 1_010_000
    assert facts["prompt_tokens"]["p50"] == pytest.approx(200_000, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 1000),
    st.none() | st.integers(32_768, 300_000),
    st.integers(0, 20_000),
)
def test_agents_grow_or_rewrite_their_context(seed: int, longest: int | None, prefix: int) -> None:
    spec = AgenticCodingSpec(
        sessions=4, concurrency=2, max_context_tokens=longest, shared_prefix_tokens=prefix, think_time_s=1
    )
    for session in sessions(spec, seed):
        for request in session.requests:
            total = request.prompt_tokens + request.output_tokens
            assert covered(request) == total and request.output_tokens >= 1 and total <= (longest or 894_371)
        for before, after in zip(session.requests, session.requests[1:], strict=False):
            assert after.after == (before.id,) and after.delay_s == 1
            kept = min(in_common(before, after), after.prompt_tokens)
            assert kept < after.prompt_tokens
            assert kept >= min(prefix, session.requests[0].prompt_tokens)


def recorded_quantiles(found: list[Session]) -> dict[str, list[float]]:
    """The quantities of the recording, measured as there: blocks of 64, new past the first turn."""
    values: dict[str, list[float]] = {name: [] for name in RECORDED}
    for session in found:
        values["requests"].append(len(session.requests))
        values["first_input_tokens"].append(session.requests[0].prompt_tokens)
        for before, request in zip((None, *session.requests), session.requests, strict=False):
            values["input_tokens"].append(request.prompt_tokens)
            values["output_tokens"].append(request.output_tokens)
            if before is not None:
                values["think_time_s"].append(request.delay_s)
                known = min(in_common(before, request), before.prompt_tokens) // 64 * 64
                values["new_tokens"].append(request.prompt_tokens - known)
    return values


LEVELS = (5, 10, 25, 50, 75, 90, 95, 99)
SESSIONS = 1500


@pytest.fixture(scope="module", params=[0, 2])
def quantities(request: pytest.FixtureRequest) -> dict[str, list[float]]:
    spec = AgenticCodingSpec(sessions=SESSIONS, concurrency=8)
    return recorded_quantiles(sessions(spec, request.param))


@pytest.mark.parametrize("name", ["output_tokens", "think_time_s", "requests", "first_input_tokens"])
def test_what_coding_agents_draw_has_the_recorded_quantiles(
    quantities: dict[str, list[float]], name: str
) -> None:
    """The share below each recorded quantile is its level, within 4 standard errors of so many draws."""
    values = np.array(quantities[name])
    for level in LEVELS:
        point, share = RECORDED[name].points[f"p{level}"], level / 100
        error = 4 * np.sqrt(share * (1 - share) / len(values))
        # Of whole numbers many are equal to the quantile.
        assert np.mean(values < point - 0.5) - error <= share <= np.mean(values <= point + 0.5) + error, level
    assert max(values) <= RECORDED[name].points["max"] * 1.000_001


@pytest.mark.parametrize("name", ["input_tokens", "new_tokens"])
def test_what_comes_of_it_is_near_the_recording(quantities: dict[str, list[float]], name: str) -> None:
    """Within 12 % from p5 to p99; the worst of four seeds is 10.1 %, the input's p95. See the docs."""
    expected = [RECORDED[name].points[f"p{level}"] for level in LEVELS]
    assert np.quantile(quantities[name], np.array(LEVELS) / 100) == pytest.approx(expected, rel=0.12)
    # New tokens are counted from a whole block on.
    assert max(quantities[name]) <= RECORDED[name].points["max"] + 63


def test_long_inputs_are_as_frequent_as_recorded(quantities: dict[str, list[float]]) -> None:
    """Of the recorded inputs 94.5 % have more than 32,000 tokens; within 5 % of all, or half of few."""
    inputs = np.array(quantities["input_tokens"])
    recorded = {32_000: 0.945, 65_000: 0.764, 131_000: 0.305, 200_000: 0.131, 262_000: 0.075, 524_000: 0.008}
    for tokens, share in recorded.items():
        assert np.mean(inputs > tokens) == pytest.approx(share, abs=min(0.05, share / 2)), tokens
    assert max(inputs) > 800_000
    assert np.mean(inputs) == pytest.approx(123_450, rel=0.06)
    assert np.mean(quantities["new_tokens"]) == pytest.approx(3_272, rel=0.06)
    assert np.mean(quantities["output_tokens"]) == pytest.approx(439, rel=0.06)
