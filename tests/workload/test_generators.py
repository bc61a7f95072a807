"""Generated streams: what they promise whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import ConversationsSpec, PoissonSpec, StreamSpec, WorkloadSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.facts import describe
from hisparse_sim.workload.request import RequestSpec, Session

PUBLISHED = ConversationsSpec(first_prompt_tokens=74_160, new_tokens_per_turn=753, output_tokens=220)


def sessions(spec: WorkloadSpec, seed: int = 0) -> list[Session]:
    return list(make_workload(spec, seed).sessions())


def tokens(request: RequestSpec) -> list[tuple[object, int]]:
    """Each known token by name, from the first."""
    return [
        (segment.stream, segment.start + i)  # type: ignore[union-attr]
        for segment in request.content
        for i in range(segment.length)  # type: ignore[union-attr]
    ]


small_conversations = st.builds(
    ConversationsSpec,
    concurrency=st.integers(1, 5),
    conversations=st.none() | st.integers(1, 6),
    turns=st.integers(1, 5),
    first_prompt_tokens=st.integers(20, 200),
    new_tokens_per_turn=st.integers(1, 50),
    output_tokens=st.integers(1, 50),
    shared_prefix_tokens=st.integers(0, 20),
    think_time_s=st.floats(0, 10),
)
open_loops = st.builds(
    PoissonSpec,
    rate_per_s=st.floats(0.01, 100),
    requests=st.integers(1, 60),
    prompt_tokens=st.integers(1, 5000),
    output_tokens=st.integers(1, 500),
    length_jitter=st.floats(0, 0.99),
)
streams = st.builds(
    StreamSpec,
    requests=st.integers(1, 60),
    prompt_tokens=st.integers(1, 5000),
    output_tokens=st.integers(1, 500),
    length_jitter=st.floats(0, 0.99),
)


def test_the_published_conversation_grows_by_what_was_said() -> None:
    first, *_ = sessions(PUBLISHED)
    assert [r.prompt_tokens for r in first.requests] == [74_160 + k * (753 + 220) for k in range(13)]
    assert {r.output_tokens for r in first.requests} == {220}


@pytest.mark.parametrize(("concurrency", "conversations"), [(1, 4), (8, 16), (16, 32), (24, 48), (32, 64)])
def test_the_published_runs_play_two_conversations_a_client_and_at_least_four(
    concurrency: int, conversations: int
) -> None:
    spec = PUBLISHED.model_copy(update={"concurrency": concurrency})
    workload = make_workload(spec, 0)
    assert workload.concurrency == concurrency
    assert len(list(workload.sessions())) == conversations


@given(small_conversations)
def test_a_turn_repeats_all_that_was_said_before(spec: ConversationsSpec) -> None:
    for session in sessions(spec):
        for before, after in zip(session.requests, session.requests[1:], strict=False):
            said = tokens(before)
            assert len(said) == before.prompt_tokens + before.output_tokens
            assert tokens(after)[: len(said)] == said
            assert after.prompt_tokens == len(said) + spec.new_tokens_per_turn
            assert after.after == (before.id,)
            assert after.delay_s == spec.think_time_s


@given(small_conversations)
def test_conversations_share_their_shared_prefix_and_nothing_else(spec: ConversationsSpec) -> None:
    opening = [tokens(session.requests[0]) for session in sessions(spec)]
    for other in opening[1:]:
        same = [a == b for a, b in zip(opening[0], other, strict=True)]
        assert same == [True] * spec.shared_prefix_tokens + [False] * (len(same) - spec.shared_prefix_tokens)


@given(small_conversations | open_loops | streams, st.integers(0, 2**32))
def test_one_seed_gives_one_stream_each_time_it_is_asked(spec: WorkloadSpec, seed: int) -> None:
    workload = make_workload(spec, seed)
    assert list(workload.sessions()) == list(workload.sessions()) == sessions(spec, seed)


@given(small_conversations | open_loops | streams)
def test_ids_are_unique_and_waits_refer_to_requests_before(spec: WorkloadSpec) -> None:
    seen: set[str] = set()
    for session in sessions(spec):
        own: set[str] = set()
        for request in session.requests:
            assert request.id not in seen | own
            assert own.issuperset(request.after)
            own.add(request.id)
        seen |= own


@given(open_loops, st.integers(0, 1000))
def test_open_loop_arrivals_are_positive_and_in_order(spec: PoissonSpec, seed: int) -> None:
    starts = [session.start_s for session in sessions(spec, seed)]
    assert all(start is not None and start > 0 for start in starts)
    assert starts == sorted(starts)  # type: ignore[type-var]


@given(open_loops | streams, st.integers(0, 1000))
def test_lengths_stay_within_their_jitter(spec: PoissonSpec | StreamSpec, seed: int) -> None:
    for session in sessions(spec, seed):
        (request,) = session.requests
        for length, mean in (
            (request.prompt_tokens, spec.prompt_tokens),
            (request.output_tokens, spec.output_tokens),
        ):
            assert length >= 1
            assert abs(length - mean) <= mean * spec.length_jitter + 0.5


def test_a_longer_run_starts_with_the_shorter_one() -> None:
    spec = PoissonSpec(rate_per_s=2, requests=40, prompt_tokens=900, output_tokens=90, length_jitter=0.3)
    longer = spec.model_copy(update={"requests": 90})
    first = [(s.start_s, s.requests[0].prompt_tokens) for s in sessions(spec)]
    assert [(s.start_s, s.requests[0].prompt_tokens) for s in sessions(longer)][:40] == first


def test_open_loop_gaps_are_exponential_at_the_given_rate() -> None:
    spec = PoissonSpec(rate_per_s=4, requests=20_000, prompt_tokens=1, output_tokens=1)
    gaps = np.diff([session.start_s or 0.0 for session in sessions(spec)])
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)


def test_a_stream_starts_requests_as_clients_become_free() -> None:
    spec = StreamSpec(concurrency=3, requests=7, prompt_tokens=1_000_000, output_tokens=1_000)
    workload = make_workload(spec, 0)
    assert workload.concurrency == 3
    assert [session.start_s for session in workload.sessions()] == [None] * 7


@pytest.mark.parametrize(
    "spec",
    [
        PUBLISHED.model_copy(update={"shared_prefix_tokens": 74_161}),
        StreamSpec(requests=1, prompt_tokens=10, output_tokens=1, shared_prefix_tokens=11),
    ],
)
def test_a_shared_prefix_longer_than_the_prompt_is_refused(spec: WorkloadSpec) -> None:
    with pytest.raises(InputError, match=r"workload\.shared_prefix_tokens"):
        make_workload(spec, 0)


def test_the_hit_bound_of_the_published_workload_counts_all_but_new_tokens() -> None:
    facts = describe(make_workload(PUBLISHED, 0))
    prompts = sum(74_160 + k * 973 for k in range(13))
    assert facts["requests"] == 832
    assert facts["prefix_hit_bound"] == pytest.approx(1 - (74_160 + 12 * 753) / prompts)


def test_a_shared_prefix_is_computed_once() -> None:
    spec = StreamSpec(requests=4, prompt_tokens=100, output_tokens=1, shared_prefix_tokens=60)
    assert describe(make_workload(spec, 0))["prefix_hit_bound"] == 3 * 60 / 400
