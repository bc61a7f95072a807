"""Exact buffers and replays: laws over arbitrary traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.errors import InputError
from hisparse_sim.locality.hot_buffer import HotBuffer
from hisparse_sim.locality.policies import POLICIES
from hisparse_sim.locality.replay import lookups_of, replay

TOPK = 6
traces = st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=TOPK), min_size=1, max_size=25).map(
    lambda steps: [np.array(sorted(rows), dtype=np.int64) for rows in steps]
)
shuffled = st.builds(
    lambda steps, random: [np.array(random.sample(rows.tolist(), len(rows))) for rows in steps],
    traces,
    st.randoms(use_true_random=False),
)
"""Steps whose rows are in any order: misses take slots in it."""
Trace = list[np.ndarray]


def misses(trace: Trace, rows: int, policy: str = "lru") -> int:
    return int(replay(trace, hot_rows=rows, policy=policy).misses.sum())


@given(traces, st.integers(TOPK, 40), st.sampled_from(sorted(POLICIES)))
def test_each_row_misses_when_it_is_first_wanted_and_no_step_misses_more_than_it_wants(
    trace: Trace, rows: int, policy: str
) -> None:
    found = replay(trace, hot_rows=rows, policy=policy)
    different = len(np.unique(np.concatenate(trace)))
    assert (found.misses <= found.lookups).all()
    assert different <= found.misses.sum() <= found.lookups.sum()
    assert 0.0 <= found.share() <= 1.0
    if rows >= different:
        assert found.misses.sum() == different


@given(traces, st.integers(TOPK, 40), st.integers(0, 10))
def test_more_rows_never_miss_more_with_the_future_known(trace: Trace, rows: int, more: int) -> None:
    assert misses(trace, rows + more, "belady") <= misses(trace, rows, "belady")


@given(shuffled, st.integers(TOPK, 40), st.integers(1, 10))
def test_more_rows_never_miss_more_in_the_kernels_lru(trace: Trace, rows: int, more: int) -> None:
    # Although hits go behind misses of the same step: what the larger buffer holds beyond the smaller one
    # is at most ``more`` rows, so no more than those can change places with what the smaller one keeps.
    assert misses(trace, rows + more) <= misses(trace, rows)


@given(traces, st.integers(TOPK, 40), st.sampled_from(["lru", "fifo", "random"]))
def test_no_policy_misses_less_than_belady(trace: Trace, rows: int, policy: str) -> None:
    assert misses(trace, rows, "belady") <= misses(trace, rows, policy)


@given(traces, st.integers(TOPK, 40), st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_more_resident_pages_never_look_up_more_and_never_miss_more(
    trace: Trace, rows: int, some: set[int], others: set[int]
) -> None:
    positions = [np.pad(r * 10, (0, TOPK - len(r)), constant_values=-1)[None] for r in trace]
    pages = [np.isin(np.arange(6), list(s)) for s in (some, some | others)]
    few, many = (lookups_of(positions, p) for p in pages)
    a, b = (replay(r, hot_rows=rows) for r in (few, many))
    assert (b.lookups <= a.lookups).all()
    assert misses(many, rows, "belady") <= misses(few, rows, "belady")
    assert b.misses.sum() <= a.misses.sum()


@given(traces, st.integers(TOPK, 40))
def test_the_buffer_is_the_last_steps_rows(trace: Trace, rows: int) -> None:
    buffer = HotBuffer.empty(rows)
    for step, wanted in enumerate(trace):
        buffer.resolve(wanted)
        held = set(buffer.owners[buffer.owners >= 0].tolist())
        recent: set[int] = set()
        for earlier in trace[step::-1]:
            if len(recent | set(earlier.tolist())) > rows:
                break
            recent |= set(earlier.tolist())
        assert recent <= held
        assert sorted(buffer.order.tolist()) == list(range(rows))


def test_first_rows_hit_at_once() -> None:
    buffer = HotBuffer.first_rows(4, 100)
    slots, missed = buffer.resolve(np.array([2, 50, 0]))
    assert missed.tolist() == [False, True, False] and slots.tolist()[0] == 2


def test_a_step_that_wants_more_than_the_buffer_holds_is_refused() -> None:
    with pytest.raises(InputError, match=r"3 rows are fewer than the 4 of one step"):
        replay([np.arange(4)], hot_rows=3)
