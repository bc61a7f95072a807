"""However steps are noted, and however often they are worked up, the same comes out."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_sim.cost.work import StepCost
from hisparse_sim.simulation.columns import PIECE_ROWS, StepLog
from hisparse_sim.simulation.record import RequestRecord
from hisparse_sim.simulation.recorder import Recorder
from hisparse_sim.simulation.rows import COUNTS, FIELDS, Counts, Rows, StepRow

GRAIN = 3


class Noted(NamedTuple):
    """A run of equal steps, one after the other, after a pause."""

    pause_s: float
    seconds: list[float]
    free: list[int]
    counts: Counts
    cost: StepCost
    moved: int
    """Bytes that begin to move after them."""


few = st.integers(0, 2)
parts = st.floats(0.001, 9.0)


@st.composite
def runs(draw: Any, moving: bool) -> Noted:
    seconds = draw(st.lists(parts, min_size=1, max_size=6))
    free = draw(st.lists(st.integers(0, 12), min_size=len(seconds), max_size=len(seconds)))
    prefill = draw(st.sampled_from([0, 0, 0, 64])) if len(seconds) == 1 else 0
    preempted = draw(st.sampled_from([0, 0, 0, 1])) if len(seconds) == 1 else 0
    moved = draw(st.sampled_from([0, 5])) if moving else 0
    # Where bytes move without a step all are whole numbers.
    bytes_ = draw(st.sampled_from([0.0, 2.0] if moving else [0.0, 0.1, 1 / 3]))
    running, waiting, decodes = draw(few), draw(st.sampled_from([0, 0, 1])), draw(st.integers(1, 2))
    counts = running, waiting, decodes, prefill, 7, preempted, draw(few), 0, bytes_, 0.0, 0
    moe_s, gather_s = draw(st.sampled_from([0.1, 0.3])), draw(st.sampled_from([0.0, 0.7]))
    cost = StepCost(seconds[0], moe_s, gather_s=gather_s)
    pause_s = draw(st.sampled_from([0.0, 0.0, 0.5]))
    return Noted(pause_s, seconds, sorted(free, reverse=True), counts, cost, moved)


several = st.booleans().flatmap(lambda moving: st.lists(runs(moving), max_size=12))


def recorded(
    noted: list[Noted], *, one_by_one: bool, settled: set[int]
) -> tuple[Recorder, list[RequestRecord]]:
    """``settled``: after which runs all is worked up. A request rides from each run to the next but one."""
    recorder = Recorder(Rows(GRAIN), replica=2)
    riding: list[RequestRecord] = []
    left: list[RequestRecord] = []
    end_s = 0.0
    for number, (pause_s, seconds, free, counts, cost, moved) in enumerate(noted):
        riding.append(RequestRecord(str(number), "", 0.0, 1, 1, rides_from=recorder.steps))
        start_s = end_s + pause_s
        ends = []
        for each_s in seconds:
            end_s = (ends[-1] if ends else start_s) + each_s
            ends.append(end_s)
        if one_by_one:
            for begin_s, then_s, attention_s, blocks in zip(
                [start_s, *ends], ends, seconds, free, strict=False
            ):
                recorder.step(counts, begin_s, then_s, blocks, cost.with_attention(attention_s), counts[2])
                if settled:
                    recorder.settle()
        elif len(seconds) == 1:
            recorder.step(counts, start_s, ends[0], free[0], cost, counts[2])
        else:
            recorder.decodes(counts, start_s, ends, free, cost, seconds)
        recorder.moved(moved, 0)
        if number > 1:
            recorder.catch_up(riding[0])
            left.append(riding.pop(0))
        if number in settled:
            recorder.settle()
    for record in riding:
        recorder.catch_up(record)
    recorder.settle()
    return recorder, left + riding


def outcome(recorder: Recorder, records: list[RequestRecord]) -> Any:
    rows = [
        StepRow(*values)
        for piece in StepLog(recorder.rows).pieces()
        for values in zip(*(column.tolist() for column in piece.values()), strict=True)
    ]
    us, counts = recorder.gaps.counted()
    times = recorder.busy_s, recorder.gaps.total_s
    return rows, records, recorder.cost, times, us.tolist(), counts.tolist()


@given(several, st.sets(st.integers(0, 12)))
def test_settled_now_and_then_or_at_the_end_it_is_the_same_to_the_last_bit(
    noted: list[Noted], settled: set[int]
) -> None:
    found = outcome(*recorded(noted, one_by_one=False, settled=settled))
    assert found == outcome(*recorded(noted, one_by_one=False, settled=set()))
    assert found == outcome(*recorded(noted, one_by_one=True, settled={0}))


@given(several)
def test_rows_gaps_and_costs_are_what_a_step_at_a_time_gives(noted: list[Noted]) -> None:
    """The same rules, written down for one step after the other."""
    rows: list[list[Any]] = []
    gaps: dict[int, int] = {}
    waits: list[float] = []
    longest: dict[str, tuple[int, int]] = {}
    before_s, step, moe_s = 0.0, 0, 0.0
    kind = [FIELDS.index(n) for n in ("running", "waiting", "decodes", "host_free_blocks", "host_only_pages")]
    starts: list[int] = []
    for number, (pause_s, seconds, free, counts, cost, moved) in enumerate(noted):
        starts.append(step)
        begin_s = before_s + pause_s
        for each_s, blocks in zip(seconds, free, strict=True):
            end_s = begin_s + each_s
            named = dict(zip(COUNTS, counts, strict=True))
            row = list(
                StepRow(step, step, begin_s, end_s, gpu_free_blocks=blocks, replica=2, **named)  # type: ignore[arg-type]
            )
            last = StepRow(*rows[-1]) if rows else None
            if (
                last is not None
                and all(row[i] == last[i] for i in kind)
                and not (last.prefill_tokens or last.preemptions or counts[3] or counts[5])
                and abs(last.gpu_free_blocks - blocks) <= GRAIN
                and last.end_s == begin_s
            ):
                rows[-1][1], rows[-1][3] = step, end_s
                rows[-1][FIELDS.index("h2d_bytes")] += counts[8]
            else:
                rows.append(row)
            waits.append(end_s - before_s)
            us = int(waits[-1] * 1e6 + 0.5)
            gaps[us] = gaps.get(us, 0) + counts[2]
            moe_s += cost.moe_s
            begin_s = before_s = end_s
            step += 1
        rows[-1][FIELDS.index("h2d_bytes")] += moved
        if number > 1:
            longest[str(number - 2)] = starts[number - 2], step
    for number in range(max(len(noted) - 2, 0), len(noted)):
        longest[str(number)] = starts[number], step
    recorder, records = recorded(noted, one_by_one=False, settled={1, 4})
    found_rows, _, cost_found, _, us_found, counts_found = outcome(recorder, records)
    assert found_rows == [StepRow(*row) for row in rows]
    assert dict(zip(us_found, counts_found, strict=True)) == gaps
    assert cost_found.moe_s == pytest.approx(moe_s)
    for record in records:
        first, end = longest[record.id]
        assert record.itl_max_s == max(waits[first:end])
        assert record.sampled == end - first


def test_pieces_have_the_same_rows_however_they_came() -> None:
    recorder = Recorder()
    for i in range(PIECE_ROWS + 10):
        counts = i % 2, 0, 1, 0, 0, 0, 0, 0, 0.0, 0.0, 0
        recorder.step(counts, float(i), i + 1.0, 0, StepCost(1.0))
        if i % 1000 == 0:
            recorder.settle()
    recorder.settle()
    pieces = list(StepLog(recorder.rows).pieces())
    assert [len(piece["first_step"]) for piece in pieces] == [PIECE_ROWS, 10]
    assert [column.dtype.kind for column in pieces[0].values()].count("f") == 4
    (last,) = StepLog(recorder.rows).columns("last_step")
    assert last.tolist() == list(range(PIECE_ROWS + 10))
