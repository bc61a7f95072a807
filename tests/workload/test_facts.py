"""Counting without keeping: the same as keeping all, whichever way a trace is read."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.scenario.workload import AgenticCodingSpec, TraceSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.facts import Facts, describe
from hisparse_sim.workload.remembered import Recent, RecentNames, RecentNumbers
from hisparse_sim.workload.request import BlockHashes, RequestSpec
from hisparse_sim.workload.tally import Tally, TimeBins
from hisparse_sim.workload.traces import lines, open_trace, parquet
from hisparse_sim.workload.traces.batch import IdLists
from hisparse_sim.workload.traces.flat import FlatTrace
from hisparse_sim.workload.traces.lines import read_json_lines, read_table
from hisparse_sim.workload.traces.parquet import read_parquet
from hisparse_sim.workload.unlimited_cache import SeenIds, UnlimitedCache


@given(st.lists(st.lists(st.integers(0, 10_000_000), max_size=30), min_size=1))
def test_a_tally_of_whole_numbers_is_exact(parts: list[list[int]]) -> None:
    tally, values = Tally(), [value for part in parts for value in part]
    for part in parts:
        tally.add(np.array(part, dtype=np.int64))
    assert tally.count == len(values)
    if values:
        assert tally.quantile([0, 0.3, 0.5, 0.99, 1]) == pytest.approx(
            np.quantile(values, [0, 0.3, 0.5, 0.99, 1])
        )
        assert tally.mean == pytest.approx(np.mean(values))


@given(st.lists(st.floats(0, 1e8), min_size=1))
def test_a_tally_of_times_is_near(values: list[float]) -> None:
    tally = Tally()
    tally.add(np.array(values))
    assert tally.quantile([0.0, 0.5, 1.0]) == pytest.approx(
        np.quantile(values, [0, 0.5, 1]), rel=3e-4, abs=2e-9
    )


def test_round_times_come_out_as_they_are() -> None:
    tally = Tally()
    tally.add(np.array([0.0, 0.5, 3.0, 7.5, 3600.0]))
    assert tally.values()[0].tolist() == [0.0, 0.5, 3.0, 7.5, 3600.0]


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_time_bins_lose_no_arrival(times: list[float]) -> None:
    bins = TimeBins()
    for time_s in sorted(times):
        bins.add(np.array([time_s]))
    assert bins.counts.sum() == len(times)
    expected = np.bincount((np.array(times) / bins.width_s).astype(int), minlength=bins.BINS)
    assert bins.counts.tolist() == expected.tolist()


id_lists = st.lists(st.lists(st.integers(0, 40), max_size=8, unique=True), max_size=12)


def known_first(seen: SeenIds, batches: list[list[list[int]]]) -> list[int]:
    found: list[int] = []
    for batch in batches:
        flat = np.array([i for ids in batch for i in ids], dtype=np.int64)
        found += seen.known_first(
            IdLists(flat, np.cumsum([len(ids) for ids in batch], dtype=np.int64))
        ).tolist()
    return found


@pytest.mark.parametrize("spread", [1, 2**34, -(2**40)], ids=["numbers", "hashes", "negative hashes"])
@given(st.lists(id_lists, max_size=4))
def test_ids_are_known_once_they_were_said(spread: int, batches: list[list[list[int]]]) -> None:
    batches = [[[spread * i for i in ids] for ids in batch] for batch in batches]
    before: set[int] = set()
    expected = []
    for ids in itertools.chain(*batches):
        expected.append(next((n for n, i in enumerate(ids) if i not in before), len(ids)))
        before.update(ids)
    assert known_first(SeenIds(), batches) == expected


def test_hashes_after_numbers_keep_what_was_known() -> None:
    assert known_first(SeenIds(), [[[1, 2, 3]], [[1, 2, 2**50]], [[1, 2, 3, 2**50, 4]]]) == [0, 2, 4]


def test_what_is_remembered_has_a_bound() -> None:
    recent: Recent[int] = Recent(3)
    for key in range(1, 8):
        recent.put(key, key)
        recent.get(1)
    assert [key for key in range(1, 8) if recent.get(key)] == [1, 5, 6, 7] or recent.get(7) == 7


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=6), max_size=6))
def test_a_name_that_came_before_is_found(batches: list[list[str | None]]) -> None:
    names, before = RecentNames(100), set[str | None]([None])
    for batch in batches:
        expected = []
        for place, name in enumerate(batch):
            expected += [place] if name in before and name is not None else []
            before.add(name)
        assert names.repeated(batch) == expected


@given(st.integers(1, 9), st.lists(st.lists(st.integers(0, 60), max_size=9), max_size=12))
def test_names_are_remembered_for_so_long_at_least(size: int, batches: list[list[int]]) -> None:
    names, before = RecentNames(size), list[int]()
    for batch in batches:
        found = set(names.repeated([str(i) for i in batch]))
        lately = before[len(before) - size :] if len(before) > size else before
        assert {place for place, i in enumerate(batch) if i in lately} <= found
        assert all(batch[place] in before + batch[:place] for place in found)
        before += batch


@given(st.lists(st.dictionaries(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), st.integers(0, 99))))
def test_numbers_are_remembered_by_key(batches: list[dict[int, int]]) -> None:
    numbers, known = RecentNumbers(10_000), dict[int, int]()
    for batch in batches:
        keys = np.array(sorted(batch), dtype=np.int64)
        assert numbers.get(keys, -1).tolist() == [known.get(key, -1) for key in sorted(batch)]
        numbers.put(keys, np.array([batch[key] for key in sorted(batch)], dtype=np.int64))
        known |= batch


def test_numbers_that_nobody_asks_for_are_forgotten() -> None:
    numbers = RecentNumbers(3)
    for key in range(1, 9):
        numbers.put(np.array([key]), np.array([10 * key]))
        assert numbers.get(np.array([1]), 0).tolist() == [10]
    found = numbers.get(np.arange(1, 9), 0).tolist()
    assert found[0] == 10 and found[6:] == [70, 80] and 3 <= np.count_nonzero(found) <= 6


class Slow:
    """Reads line by line whatever comes."""

    def __enter__(self) -> None:
        self._lanes = (lines.json_lane, lines.table_lane)
        lines.json_lane = lambda *_: None  # type: ignore[assignment]
        lines.table_lane = lambda *_: None  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        lines.json_lane, lines.table_lane = self._lanes


rows = st.lists(
    st.fixed_dictionaries(
        {"arrival_s": st.floats(0, 1e6) | st.integers(0, 10**6), "prompt_tokens": st.integers(-1, 10**6)},
        optional={
            "output_tokens": st.integers(0, 10**5) | st.sampled_from([7.0, 7.5, None]),
            "session": st.sampled_from(["a", "b, c", "", 'd"', "é", None]) | st.integers(0, 9),
            "prefix_group": st.sampled_from(["g", None]),
            "prefix_tokens": st.sampled_from([None, 3, 50]),
            "priority": st.integers(-3, 3) | st.sampled_from([None, 2.0]),
            "model": st.sampled_from(["x", [1, {"y": 2}], None, 1.5]),
        },
    ),
    min_size=1,
    max_size=8,
)


def columns(batches: Any) -> Any:
    """All columns, and which lines have problems; what those are, only the slow lane says."""
    found: dict[str, list[Any]] = {}
    for batch in batches:
        named = {
            "lines": batch.lines.tolist(),
            "arrival_s": list(map(str, batch.arrival_s.tolist())),  # nan is not nan
            "prompt": batch.prompt_tokens.tolist(),
            "output": batch.output_tokens.tolist(),
            "problems": batch.problems,
        }
        for name, values in (named | {name: batch.values(name) for name in batch.more}).items():
            found.setdefault(name, []).extend(values)
        if batch.ids is not None:
            found.setdefault("ids", []).extend(batch.ids.of(i).tolist() for i in range(len(batch)))
    return found


FIELDS = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "session",
    "prefix_group",
    "prefix_tokens",
    "priority",
)


@settings(max_examples=150, deadline=None)
@given(rows)
def test_both_lanes_read_the_same_of_lines(tmp_path_factory: pytest.TempPathFactory, made: list[Any]) -> None:
    path = tmp_path_factory.mktemp("lanes") / "t.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    fields = {field: field for field in FIELDS}
    fast = columns(read_json_lines(path, fields))
    with Slow():
        assert columns(read_json_lines(path, fields)) == fast


def test_only_pieces_with_something_odd_are_read_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = tmp_path / "t.jsonl", 20_000
    made: list[Any] = [
        {"created": i, "usage": {"prompt_tokens": 9, "completion_tokens": 7.0}} for i in range(count)
    ]
    made[700]["usage"] = None
    made[15_000]["created"] = "2023-11-16 18:17:03"
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    slowly: list[int] = []
    line_by_line = lines._line_by_line

    def counted(block: Any, *rest: Any) -> Any:
        slowly.append(block.text.count(b"\n"))
        return line_by_line(block, *rest)

    monkeypatch.setattr(lines, "_line_by_line", counted)
    fields = {
        "arrival_s": "created",
        "prompt_tokens": "usage.prompt_tokens",
        "output_tokens": "usage.completion_tokens",
    }
    found = columns(read_json_lines(path, fields))
    assert 1 <= sum(slowly) < count / 10
    assert found["problems"] == [(701, "'usage.prompt_tokens' is missing")]
    assert found["lines"] == [line for line in range(1, count + 1) if line != 701]
    with Slow():
        assert columns(read_json_lines(path, fields)) == found


@settings(max_examples=100, deadline=None)
@given(rows)
def test_both_lanes_read_the_same_of_parquet(
    tmp_path_factory: pytest.TempPathFactory, made: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("lanes") / "t.parquet"
    names = [field for field in FIELDS if any(field in row for row in made)]
    for row in made:
        row["session"] = str(row["session"]) if row.get("session") is not None else None
    pq.write_table(pa.table({name: [row.get(name) for row in made] for name in names}), path)
    fields = {name: name for name in names}
    if "output_tokens" not in fields:
        return
    fast = columns(read_parquet(path, fields))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "batch_of", refuse)
        assert columns(read_parquet(path, fields)) == fast


def refuse(*_: object) -> None:
    raise ValueError("slowly")


cells = st.sampled_from(["1", "25", "", "null", "x", "1.5", "7.0", "1e3", "nan", " 4", "-3", '"7"', '"a,b"'])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(*[cells] * 4), min_size=1, max_size=6))
def test_both_lanes_read_the_same_of_tables(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, ...]]
) -> None:
    path = tmp_path_factory.mktemp("lanes") / "t.csv"
    header = ("prompt_tokens", "output_tokens", "session", "priority")
    path.write_text("\n".join([",".join(header), *(",".join(row) for row in made), ""]))
    fields = {field: field for field in header}
    fast = columns(read_table(path, header, fields))
    with Slow():
        assert columns(read_table(path, header, fields)) == fast


def test_nested_fields_and_ids_go_the_fast_lane(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = [
        {
            "usage": {"prompt_tokens": 5 + i, "completion_tokens": i},
            "created": 10 + i,
            "hash_ids": list(range(i)),
        }
        for i in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    fields = {
        "arrival_s": "created",
        "prompt_tokens": "usage.prompt_tokens",
        "output_tokens": "usage.completion_tokens",
        "hash_ids": "hash_ids",
    }
    lane = lines.json_lane(path.read_bytes().split(b"\n")[0], fields)
    assert lane is not None
    (block,) = lines.read_blocks(path)
    assert lane(block) is not None
    fast = columns(read_json_lines(path, fields))
    with Slow():
        assert columns(read_json_lines(path, fields)) == fast


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 300),
            st.integers(0, 50),
            st.sampled_from([None, "s", "t"]),
            st.sampled_from([None, "g", "h"]),
            st.sampled_from([None, 0, 20, 100]),
            st.sampled_from([None, "gold", "free"]),
            st.sampled_from([None, 0, 2.5, 7]),
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_batches_and_sessions_have_the_same_facts(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[Any, ...]],
    repeat: int,
    played: bool,
    ids: bool,
) -> None:
    names = (
        "prompt_tokens",
        "output_tokens",
        "session",
        "prefix_group",
        "prefix_tokens",
        "tenant",
        "delay_s",
    )
    names = names[: 7 if played else 6]
    if played:
        made = sorted(made, key=lambda row: row[2] or "")
    path = tmp_path_factory.mktemp("facts") / "t.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {"arrival_s": i} | dict(zip(names, row, strict=False)) | ({"id": f"s{i}"} if ids else {})
            )
            + "\n"
            for i, row in enumerate(made)
        )
    )
    workload = open_trace(TraceSpec(path=path, repeat=repeat), 0)
    assert isinstance(workload, FlatTrace) and workload.in_batches
    one_by_one = Facts()
    for session in workload.sessions():
        one_by_one.add(session)
    one_by_one.close()
    assert Facts.of(workload).summary() == one_by_one.summary()
    in_parts = Facts()
    for batch in workload.batches():
        for part in np.array_split(np.arange(len(batch)), 3):
            in_parts.add_batch(batch.take(part), None)
    in_parts.close()
    assert in_parts.summary() == one_by_one.summary()


def test_the_bound_is_that_of_a_cache_without_a_limit() -> None:
    cache = UnlimitedCache()

    def hit(ids: list[int], tokens: int) -> int:
        content = BlockHashes("s", np.array(ids), 64)
        return int(cache.hit_tokens([RequestSpec("r", tokens, 1, content)])[0])

    assert [hit([1, 2], 130), hit([1, 2, 3], 200), hit([1, 2, 3], 192), hit([1, 9], 130)] == [0, 128, 191, 64]


def test_how_many_were_counted_is_told_now_and_then() -> None:
    told: list[int] = []
    workload = make_workload(AgenticCodingSpec(sessions=300, concurrency=2), 0)
    facts = Facts.of(workload, told.append)
    assert len(told) > 2 and told == sorted(told) and told[-1] <= facts.prompt_tokens.count


@pytest.mark.parametrize("ramp_up_s", [0, 60])
def test_a_closed_loop_has_no_times_of_arrival(ramp_up_s: float) -> None:
    facts = describe(make_workload(AgenticCodingSpec(sessions=5, concurrency=2, ramp_up_s=ramp_up_s), 0))
    assert facts["concurrency"] == 2
    assert facts["last_arrival_s"] is facts["sessions_per_s"] is None
    assert facts["arrival_gap_s"] == {}
    json.dumps(facts, allow_nan=False)
