"""kv-cache-tester sessions: made up ones, and the recorded ones where they are at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.facts import describe
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Session

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "kv-cache-tester"
needs_recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded sessions are not here")


def request(t: float, prompt: int, out: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": prompt, "out": out, "hash_ids": ids} | more


def subagent(t: float, duration_ms: float, requests: list[Any], agent_id: str = "a") -> dict[str, Any]:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": agent_id,
        "duration_ms": duration_ms,
        "requests": requests,
    }


def write(folder: Path, requests: Any, name: str = "s.json", **more: Any) -> Path:
    file = folder / name
    session = {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": requests} | more
    file.write_text(json.dumps(session))
    return file


def sessions(path: Path, seed: int = 0, **spec: Any) -> list[Session]:
    return list(make_workload(TraceSpec(path=path, **spec), seed).sessions())


def only(path: Path) -> dict[str, RequestSpec]:
    (session,) = sessions(path)
    return {r.id: r for r in session.requests}


def ids(request: RequestSpec) -> list[int]:
    assert isinstance(request.content, BlockHashes)
    return request.content.ids.tolist()


CHAIN = [
    request(0, 130, 70, [1, 2], api_time=3.0, think_time=0.0),
    request(9, 210, 0, [1, 2, 3], api_time=2.0, think_time=6.0),
]


def test_requests_follow_each_other_by_think_time(tmp_path: Path) -> None:
    first, second = only(write(tmp_path, CHAIN)).values()
    assert (first.id, first.after, first.delay_s) == ("s/0", (), 0.0)
    assert (second.id, second.after, second.delay_s) == ("s/1", ("s/0",), 6.0)
    assert second.output_tokens == 0


def test_without_think_time_the_recorded_gap_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path, [request(0, 10, 1, [], api_time=3.0), request(9, 12, 1, [])])
    assert only(file)["s/1"].delay_s == 6.0


def test_an_output_that_the_next_prompt_repeats_has_its_ids(tmp_path: Path) -> None:
    # 130 + 70 tokens are three blocks and 8 tokens; the third holds both prompt and output.
    assert ids(only(write(tmp_path, CHAIN))["s/0"]) == [1, 2, 3]


@pytest.mark.parametrize(
    "following",
    [request(9, 199, 1, [1, 2, 3]), request(9, 210, 1, [1, 7, 3])],
    ids=["too short to hold it", "continues another prompt"],
)
def test_an_output_that_the_next_prompt_does_not_repeat_is_its_own(
    tmp_path: Path, following: dict[str, Any]
) -> None:
    assert ids(only(write(tmp_path, [CHAIN[0], following]))["s/0"]) == [1, 2]


def test_subagents_start_together_and_their_parent_waits_for_all(tmp_path: Path) -> None:
    nested = [
        request(0, 64, 5, [11], api_time=1.0, think_time=0.0),
        request(3, 128, 5, [11, 12], api_time=4.0, think_time=2.0),
    ]
    other = [request(0, 64, 5, [21], api_time=9.0)]
    file = write(
        tmp_path,
        [
            request(0, 64, 5, [1], api_time=10.0),
            subagent(18.5, 8_000, nested, "a"),
            subagent(20.5, 10_000, other, "b"),
            request(24, 128, 5, [1, 2], api_time=1.0, think_time=14.0),
            request(30, 128, 5, [1, 2], api_time=1.0, think_time=5.0),
        ],
    )
    got = only(file)
    assert list(got) == ["s/0", "s/a/0", "s/b/0", "s/a/1", "s/3", "s/4"]
    assert (got["s/a/0"].after, got["s/a/0"].delay_s) == (("s/0",), 0.5)
    assert (got["s/b/0"].after, got["s/b/0"].delay_s) == (("s/0",), 0.5)
    assert (got["s/a/1"].after, got["s/a/1"].delay_s) == (("s/a/0",), 2.0)
    # The last to end is b at 10.5 + 9 s; the parent went on 4.5 s later.
    assert (got["s/3"].after, got["s/3"].delay_s) == (("s/0", "s/a/1", "s/b/0"), 4.5)
    assert (got["s/4"].after, got["s/4"].delay_s) == (("s/3",), 5.0)


def test_an_id_after_two_different_prefixes_is_two_ids(tmp_path: Path) -> None:
    file = write(tmp_path, [request(0, 192, 1, [1, 2, 3]), request(1, 192, 1, [1, 4, 3])])
    first, second = (ids(r) for r in only(file).values())
    assert first[0] == second[0]
    assert first[2] != second[2]


def test_an_id_of_a_partial_last_block_is_left_out(tmp_path: Path) -> None:
    assert ids(only(write(tmp_path, [request(0, 70, 1, [1, 2])]))["s/0"]) == [1]


def test_the_limit_takes_the_first_arrivals_of_all_sessions_and_subagents(tmp_path: Path) -> None:
    for name in "pqr":
        nested = [request(t, 64, 1, [9]) for t in (0, 100)]
        write(
            tmp_path,
            [request(0, 64, 1, [1]), subagent(300, 200_000, nested), request(400, 64, 1, [1])],
            f"{name}.json",
        )
    whole = sessions(tmp_path, seed=5)
    assert len({s.start_s for s in whole}) == 3
    assert [s.start_s for s in whole] == sorted(s.start_s or 0.0 for s in whole)
    arrivals = sorted((s.start_s + t, s.id, n) for s in whole for n, t in enumerate((0, 100, 200, 400)))  # type: ignore[operator]
    for limit in (1, 4, 7, 12, 99):
        got = {s.id: len(s.requests) for s in sessions(tmp_path, seed=5, limit=limit)}
        expected = [name for _, name, _ in arrivals[:limit]]
        assert got == {name: expected.count(name) for name in set(expected)}


def test_a_seed_decides_the_starts_and_nothing_else(tmp_path: Path) -> None:
    for name in "pqr":
        write(tmp_path, CHAIN, f"{name}.json")
    assert [s.start_s for s in sessions(tmp_path, 1)] == [s.start_s for s in sessions(tmp_path, 1)]
    assert [s.start_s for s in sessions(tmp_path, 1)] != [s.start_s for s in sessions(tmp_path, 2)]
    assert {s.id for s in sessions(tmp_path, 1)} == {s.id for s in sessions(tmp_path, 2)} == set("pqr")
    assert all(0 <= (s.start_s or 0.0) < 60 for s in sessions(tmp_path, 1))


def test_sessions_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for name in ("a.1.json", "a.2.json"):
        write(tmp_path, CHAIN, name)
    assert {s.id for s in sessions(tmp_path)} == {"a.1", "a.2"}
    scopes = {r.content.scope for s in sessions(tmp_path) for r in s.requests}  # type: ignore[union-attr]
    assert scopes == {"a.1", "a.2"}


def test_a_session_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(write(tmp_path, CHAIN, "a.json").read_bytes())
    (tmp_path / "a.json.gz").write_bytes(packed)
    with pytest.raises(InputError, match=r"a\.json\.gz: is the session of a\.json, too"):
        sessions(tmp_path)
    (tmp_path / "a.json").unlink()
    assert [(s.id, s.requests[1].id) for s in sessions(tmp_path)] == [("a", "a/1")]


def test_a_cap_on_live_sessions_is_handed_on(tmp_path: Path) -> None:
    assert make_workload(TraceSpec(path=write(tmp_path, CHAIN), concurrency=3), 0).concurrency == 3


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "holds no requests"),
        ({}, "requests: must be a list"),
        ([3], r"requests\[0\]: must be a JSON object"),
        ([CHAIN[0], request(1, 0, 1, [])], r"requests\[1\]: 'in' is 0"),
        ([request(0, -5, 1, [])], "'in' is -5"),
        ([request(0, 5, -1, [])], "'out' is -1"),
        ([request(0, 5, 1.5, [])], "'out' is 1.5"),  # type: ignore[arg-type]
        ([request(0, True, 1, [])], "'in' is True"),
        ([{"t": 0, "type": "n", "in": 5, "hash_ids": []}], "'out' is missing"),
        ([{"type": "n", "in": 5, "out": 1, "hash_ids": []}], "'t' is missing"),
        ([request(-1, 5, 1, [])], "'t' is -1"),
        ([request(float("nan"), 5, 1, [])], "'t' is nan"),
        ([request(0, 5, 1, [], think_time=-2)], "'think_time' is -2"),
        ([request(0, 5, 1, [], api_time="3")], "'api_time' is '3'"),
        ([request(5, 5, 1, []), request(4, 5, 1, [])], "before that of the request before"),
        ([request(0, 129, 1, [1])], "1 ids for a prompt with 2 full blocks"),
        ([request(0, 64, 1, [1, 2, 3])], "3 ids for a prompt with 1 full blocks"),
        ([request(0, 64, 1, ["x"])], "whole numbers"),
        ([request(0, 64, 1, [1.5])], "whole numbers"),
        ([request(0, 128, 1, [1, [2]])], "whole numbers"),
        ([request(0, 64, 1, [2**70])], "whole numbers"),
        ([{"t": 0, "in": 64, "out": 1}], "'hash_ids' is missing"),
        ([CHAIN[0], *[subagent(5, 1, [request(0, 5, 1, [])])] * 2], "id s/a/0"),
        ([CHAIN[0], subagent(5, -1, [request(0, 5, 1, [])])], "'duration_ms' is -1"),
        ([CHAIN[0], subagent(5, 1, [request(-1, 5, 1, [])])], r"requests\[1\]\.requests\[0\]: 't'"),
    ],
)
def test_a_bad_request_is_named_by_file_and_place(tmp_path: Path, requests: Any, message: str) -> None:
    file = write(tmp_path, requests)
    with pytest.raises(InputError, match=message) as caught:
        make_workload(TraceSpec(path=file), 0)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"requests": [{"t": 0,', "cut short"),
        (b"", "cut short"),
        (b'{"block_size": 64, "requests": []}\n{}', "bad.json:2:1: goes on after its JSON has ended"),
        (b"[]", "JSON object"),
        (b'{"block_size": "64", "requests": []}', "'block_size' is '64'"),
        (b'{"requests": []}', "'block_size' is missing"),
        (b'{"block_size": 64, "hash_id_scope": "global", "requests": []}', "'global'"),
        (b"\xff\xfe{", "not UTF-8"),
        (b'{"block_size": ' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_session_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "bad.json").write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        make_workload(TraceSpec(path=tmp_path), 0)
    assert "bad.json" in str(caught.value)


def test_a_path_without_sessions_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        make_workload(TraceSpec(path=tmp_path / "nowhere"), 0)
    with pytest.raises(InputError, match=r"no \.json session"):
        make_workload(TraceSpec(path=tmp_path), 0)


def test_one_bad_file_in_a_folder_stops_all_before_anything_starts(tmp_path: Path) -> None:
    write(tmp_path, CHAIN, "a.json")
    write(tmp_path, [request(0, 64, 1, [])], "b.json")
    with pytest.raises(InputError, match=r"b\.json"):
        make_workload(TraceSpec(path=tmp_path, limit=1), 0)


@needs_recorded
def test_the_recorded_sessions_are_read_whole() -> None:
    facts = describe(make_workload(TraceSpec(path=RECORDED), 0))
    assert (facts["sessions"], facts["requests"]) == (48, 2751)
    assert facts["prompt_tokens"]["max"] == 791_364
    assert facts["output_tokens"]["min"] == 0
    assert facts["prefix_hit_bound"] == pytest.approx(0.962, abs=0.001)


@needs_recorded
def test_recorded_subagents_run_beside_each_other_before_their_parent_goes_on() -> None:
    got = only(RECORDED / "trace_0254.json")
    agents = [f"trace_0254/agent_00{n}" for n in (1, 2, 3)]
    assert {got[f"{agent}/0"].after for agent in agents} == {("trace_0254/1",)}
    assert set(got["trace_0254/5"].after) == {
        "trace_0254/1",
        *(f"{a}/{n}" for a, n in zip(agents, (6, 3, 5), strict=True)),
    }


@needs_recorded
def test_recorded_ids_stand_for_their_prefix_as_they_are() -> None:
    raw = json.loads((RECORDED / "trace_0014.json").read_text())["requests"][12]["hash_ids"]
    got = ids(only(RECORDED / "trace_0014.json")["trace_0014/12"])
    assert got[: len(raw)] == raw
    assert np.all(np.diff(got[len(raw) :]) > 0)
