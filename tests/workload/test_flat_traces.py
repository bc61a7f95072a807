"""Traces with a row a request: formats, what is refused and where, cuts, copies and scales."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import TraceSpec
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.facts import describe
from hisparse_sim.workload.request import BlockHashes, RequestSpec, Segment, Session

SHARED = Path(__file__).resolve().parents[3] / "shared"
needs_traces = pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the recorded traces are not here")
needs_cases = pytest.mark.skipif(not (SHARED / "cases").is_dir(), reason="the recorded cases are not here")


def write(folder: Path, text: str | bytes, name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def sessions(path: Path, **spec: Any) -> list[Session]:
    return list(make_workload(TraceSpec(path=path, **spec), 0).sessions())


def sent(path: Path, **spec: Any) -> list[tuple[float | None, int, int]]:
    """Time, prompt and output of each request."""
    return [(s.start_s, r.prompt_tokens, r.output_tokens) for s in sessions(path, **spec) for r in s.requests]


def only(path: Path, **spec: Any) -> list[RequestSpec]:
    return [s.requests[0] for s in sessions(path, **spec)]


def mooncake(t: float, prompt: int, ids: list[int], out: int = 5) -> dict[str, Any]:
    return {"timestamp": t, "input_length": prompt, "output_length": out, "hash_ids": ids}


def plain(t: float | None, prompt: Any, out: Any = 5, **more: Any) -> dict[str, Any]:
    return {"arrival_s": t, "prompt_tokens": prompt, "output_tokens": out} | more


MOONCAKE = lines(mooncake(0, 600, [7, 8]), mooncake(1500, 1024, [7, 9]), mooncake(1500, 5, [3], 0))
OVERLAPPING = "session,arrival_s,think_time_s,prompt_tokens,output_tokens\n" + "".join(
    f"{name},{at},1,{50 + at},3\n" for at, name in enumerate("abab")
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,10,5\n2023-11-16 18:17:04.4799600,20,0\n"
)
OPENAI = lines(
    {"id": "a", "created": 1700000000, "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
    {"id": "b", "created": 1700000002, "usage": {"prompt_tokens": 20, "completion_tokens": 0}},
)


def test_mooncake_lines_are_milliseconds_and_blocks_of_512(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE)
    assert sent(path) == [(0.0, 600, 5), (1.5, 1024, 5), (1.5, 5, 0)]
    first, second, third = only(path)
    assert isinstance(first.content, BlockHashes) and isinstance(second.content, BlockHashes)
    assert (first.content.scope, first.content.ids.tolist(), first.content.block_tokens) == ("t", [7, 8], 512)
    assert (first.id, second.id, third.id) == ("t/1", "t/2", "t/3")


def test_bailian_lines_are_seconds_and_blocks_of_16(tmp_path: Path) -> None:
    row = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1} | mooncake(2.5, 40, [1, 2, 3])
    (request,) = only(write(tmp_path, lines(row)))
    assert isinstance(request.content, BlockHashes) and request.content.block_tokens == 16


def test_hashes_of_64_bits_are_numbered(tmp_path: Path) -> None:
    big = 2**63 + 5
    path = write(tmp_path, lines(mooncake(0, 600, [big, -1]), mooncake(1, 1024, [big, 2**40])))
    contents = [r.content for r in only(path)]
    assert [c.ids.tolist() for c in contents if isinstance(c, BlockHashes)] == [
        [2**20, 2**20 + 1],
        [2**20, 2**20 + 2],
    ]


def test_azure_tables_begin_at_their_first_request(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE, "t.csv")
    assert [(pytest.approx(t), p, o) for t, p, o in sent(path)] == [(0.0, 10, 5), (0.5, 20, 0)]


@pytest.mark.parametrize(
    "rows",
    [
        OPENAI,
        lines(
            {
                "timestamp": "2023-11-14T22:13:20Z",
                "response": {"usage": {"input_tokens": 10, "output_tokens": 5}},
            },
            {
                "timestamp": "2023-11-14T23:13:22+01:00",
                "response": {"usage": {"input_tokens": 20, "output_tokens": 0}},
            },
        ),
        lines(
            *(
                {"custom_id": "x", "response": {"body": {"created": t, "usage": usage}}}
                for t, usage in (
                    (1.7e12, {"prompt_tokens": 10, "completion_tokens": 5}),
                    (1.7e12 + 2000, {"prompt_tokens": 20, "completion_tokens": 0}),
                )
            )
        ),
    ],
    ids=["chat completions", "responses with dates", "batch output in milliseconds"],
)
def test_request_logs_of_openai_style_servers_are_read(tmp_path: Path, rows: str) -> None:
    assert sent(write(tmp_path, rows)) == [(0.0, 10, 5), (2.0, 20, 0)]


BENCH = {"input_lens": [10, 20, 30], "output_lens": [5, 6, 0], "start_times": [100.5, 101.0, 100.0]}


def test_a_benchmark_is_sent_again_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(BENCH | {"duration": 3, "max_concurrency": 2}), "b.json")
    assert sent(path) == [(0.0, 30, 0), (0.5, 10, 5), (1.0, 20, 6)]
    assert make_workload(TraceSpec(path=path), 0).concurrency is None


def test_a_benchmark_without_start_times_is_a_closed_loop(tmp_path: Path) -> None:
    path = write(
        tmp_path, json.dumps(BENCH | {"start_times": None, "max_concurrency": 2}, indent=1), "b.json"
    )
    workload = make_workload(TraceSpec(path=path), 0)
    assert workload.concurrency == 2 and [s.start_s for s in workload.sessions()] == [None] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"start_times": None, "request_rate": 4.0},
            "has no start_times; save the benchmark with --save-detailed",
        ),
        ({"input_lens": []}, "'input_lens' is missing or empty"),
        ({"input_lens": [10, "x", 30]}, "b.json: request 2: 'input_lens' is 'x'; it must be"),
        ({"output_lens": [5]}, "output_lens: has 1 values, where input_lens has 3"),
        ({"input_lens": [10, 0, 30]}, "b.json: request 2: the prompt has 0 tokens"),
    ],
)
def test_a_benchmark_that_cannot_be_sent_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = write(tmp_path, json.dumps(BENCH | change), "b.json")
    with pytest.raises(InputError, match=message):
        sessions(path)


PLAIN = [
    plain(0.25, 100, session="s", prefix_group="g", prefix_tokens=30, priority=2, tenant="gold"),
    plain(1.5, 120, 0, session="s", prefix_group="g", prefix_tokens=30, priority=None, tenant=None),
    plain(2, 50, session="u", prefix_group="g", prefix_tokens=30, priority=-1, tenant="free"),
]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pandas as pd

    pd.DataFrame(rows).to_parquet(path)
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "jsonl": lambda folder: write(folder, lines(*PLAIN)),
    "jsonl.gz": lambda folder: write(folder, gzip.compress(lines(*PLAIN).encode()), "t.jsonl.gz"),
    "csv": lambda folder: write(
        folder,
        "\n".join(
            [
                ",".join(PLAIN[0]),
                *(",".join("" if v is None else str(v) for v in row.values()) for row in PLAIN),
                "",
            ]
        ),
        "t.csv",
    ),
    "parquet": lambda folder: parquet(folder / "t.parquet", PLAIN),
}


@pytest.mark.parametrize("container", WRITERS)
def test_plain_files_say_sessions_prefixes_priorities_and_tenants(tmp_path: Path, container: str) -> None:
    path = WRITERS[container](tmp_path)
    assert sent(path) == [(0.25, 100, 5), (1.5, 120, 0), (2.0, 50, 5)]
    first, second, third = only(path)
    assert [r.priority for r in (first, second, third)] == [2, 0, -1]
    assert first.content == (Segment("prefix/g", 0, 30), Segment("session/s", 30, 75))
    assert second.content == (Segment("prefix/g", 0, 30), Segment("session/s", 30, 90))
    assert third.content == (Segment("prefix/g", 0, 30), Segment("session/u", 30, 25))
    assert [s.tags for s in sessions(path)] == [
        {"session": "s", "tenant": "gold"},
        {"session": "s"},
        {"session": "u", "tenant": "free"},
    ]
    facts = describe(make_workload(TraceSpec(path=path), 0))
    assert facts["prefix_hit_bound"] == pytest.approx((105 + 30) / 270)
    assert facts["tenants"] == {"free": pytest.approx(1 / 3), "gold": pytest.approx(1 / 3)}


def test_rows_that_wait_are_played_as_one_session(tmp_path: Path) -> None:
    rows = [
        plain(3, 10, session="s", think_time_s=0, tenant="gold"),
        plain(3, 25, session="s", think_time_s=7.5),
        plain(4, 10, session="u", think_time_s=0),
    ]
    one, other = sessions(write(tmp_path, lines(*rows)))
    assert (one.tags, other.tags) == ({"tenant": "gold"}, {})
    assert (one.id, one.start_s, other.id, other.start_s) == ("s", 3.0, "u", 4.0)
    assert [(r.id, r.after, r.delay_s) for r in one.requests] == [("s/1", (), 0.0), ("s/2", ("s/1",), 7.5)]


def test_names_of_columns_may_be_those_of_others(tmp_path: Path) -> None:
    path = write(
        tmp_path, "Timestamp,Session ID,Request tokens,Response tokens\n5,9,472,18\n45,9,1087,0\n", "b.csv"
    )
    assert sent(path) == [(0.0, 472, 18), (40.0, 1087, 0)]


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.txt"])
def test_marks_blank_lines_and_ends_of_windows_are_no_matter(tmp_path: Path, name: str) -> None:
    text = "\ufeff" + lines(plain(0, 5), "", plain(1, 7)).replace("\n", "\r\n")
    assert sent(write(tmp_path, text, name)) == [(0.0, 5, 5), (1.0, 7, 5)]
    table = "\ufeffarrival_s,prompt_tokens,output_tokens\r\n0,5,5\r\n\r\n1,7.0,5\r\n"
    assert sent(write(tmp_path, table, "t.csv")) == [(0.0, 5, 5), (1.0, 7, 5)]


def test_requests_without_times_are_sent_one_after_the_other(tmp_path: Path) -> None:
    path = write(tmp_path, "prompt_tokens,output_tokens\n5,1\n6,1\n", "t.csv")
    assert sent(path, concurrency=1) == [(None, 5, 1), (None, 6, 1)]
    with pytest.raises(InputError, match=r"t\.csv:1: no times of arrival; plain calls them arrival_s"):
        sessions(path)


GOOD = plain(1, 9)
TABLE = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("name", "text", "where", "message"),
    [
        ("t.jsonl", lines(plain(5, 9), plain(4, 9)), ":2", "arrives 1 s before a line above it"),
        ("t.jsonl", lines(GOOD, plain(-4, 9)), ":2", "the time -4 is negative"),
        ("t.jsonl", lines(GOOD, plain(None, 9)), ":2", "the time of arrival is missing"),
        ("t.jsonl", lines(GOOD, plain(2, 0)), ":2", "the prompt has 0 tokens; it must have at least 1"),
        ("t.jsonl", lines(GOOD, {"arrival_s": 2, "output_tokens": 1}), ":2", "'prompt_tokens' is missing"),
        ("t.jsonl", lines(GOOD, plain(2, None)), ":2", "'prompt_tokens' is missing"),
        ("t.jsonl", lines(GOOD, plain(2, 9, -1)), ":2", "the output has -1 tokens"),
        ("t.jsonl", lines(GOOD, plain(2, 9.5)), ":2", "'prompt_tokens' is 9.5; it must be a whole number"),
        ("t.jsonl", lines(GOOD, plain(2, 9, prefix_tokens=-3)), ":2", "prefix_tokens is -3; it must be 0 or"),
        ("t.jsonl", lines(GOOD, plain(2, "x")), ":2", "'prompt_tokens' is 'x'; it must be a number"),
        ("t.jsonl", lines(GOOD, plain(2, True)), ":2", "'prompt_tokens' is True"),
        ("t.jsonl", lines(GOOD, '{"arrival_s": 2, "prompt_tokens": 10'), ":2", "is not a whole JSON object"),
        ("t.jsonl", lines(GOOD, "[1]"), ":2", "must be a JSON object"),
        ("t.jsonl", lines(GOOD, plain(2, 9, id="\ud800")), ":2", r"'id' is '\ud800'; it must be text"),
        ("t.jsonl", lines(GOOD, plain(2, 9, tags={"\udfff": ""})), ":2", "it must be a mapping of texts"),
        ("t.jsonl", lines(GOOD, plain(2, 9, after=["\ud8ab"])), ":2", "it must be a list of ids"),
        ("t.jsonl", lines(GOOD, plain(2, 9, segments=[["\ud800", 0, 9]])), ":2", "it must be a list of [st"),
        ("t.jsonl", lines(GOOD, plain("soon", 9)), ":2", "'arrival_s' is 'soon'; it must be a number"),
        ("t.jsonl", lines(plain(1, 9, id="a"), plain(2, 9, id="a")), ":2", "the id 'a' was used before"),
        ("t.jsonl", lines(GOOD).encode() + b'{"x": "\xe9"}\n', ":2", "is not UTF-8 text; mixed encodings"),
        ("t.jsonl", lines(GOOD).encode("utf-16"), ":1", "is UTF-16 text; save it as UTF-8"),
        ("t.jsonl", "", "", "is empty"),
        ("t.jsonl", "\n\n", "", "is empty"),
        ("t.jsonl", '[{"arrival_s": 1}]', ":1", "is a JSON array; write one JSON object a line"),
        ("t.jsonl", lines({"a": 1}), ":1", "no prompt tokens among a"),
        ("t.jsonl", lines({"arrival_s": 1, "prompt_token": 4}), ":1", "did you mean 'prompt_token'"),
        ("t.jsonl", lines(mooncake(0, 1024, [1])), ":1", "1 hash ids, too few for 1024 tokens in"),
        ("t.jsonl", lines(mooncake(0, 10, [1, 2, 3])), ":1", "3 hash ids, too many for 15 tokens"),
        ("t.jsonl", lines(mooncake(0, 10, ["x"])), ":1", "'hash_ids' is ['x']; it must be a list of whole"),
        ("t.jsonl", lines(plain(0, 10, hash_ids=[1])), ":1", "hash_ids and no block_tokens"),
        ("t.csv", "arrival_s;prompt_tokens;output_tokens\n1;2;3\n", ":1", "by ';'; they must be by a comma"),
        ("t.csv", "arrival_s prompt_tokens output_tokens\n", ":1", "separated by ' '"),
        ("t.csv", "arrival_s\tprompt_tokens\toutput_tokens\n", ":1", "separated by '\\t'"),
        ("t.csv", '"arrival_s";"prompt_tokens"\n1;2\n', ":1", "by ';'; they must be by a comma"),
        ("t.csv", (TABLE + "1,2,3\n").encode() + "4,5,6\n".encode("utf-16-le"), ":3", "holds NUL bytes"),
        ("t.csv", TABLE.encode("utf-16-le"), ":1", "holds NUL bytes, which UTF-8 text does not"),
        ("t.json", '[{"arrival_s": 1}]', ":1", "is a JSON array; write one JSON object a line"),
        ("t.json", '{"arrival_s": 1}', "", "is one JSON object without 'requests'"),
        ("t.csv", TABLE + "1,2,3\n1;2;3\n", ":3", "has 1 columns, where the header"),
        ("t.csv", TABLE + "1,2\n", ":2", "has 2 columns, where the header has 3"),
        ("t.csv", TABLE + "1,2,x\n", ":2", "'output_tokens' is 'x'"),
        ("t.csv", "1,2,3\n4,5,6\n", ":1", "the first line must name the columns"),
        ("t.csv", "arrival_s,prompt_tokens,prompt_tokens\n", ":1", "two columns have the name"),
        ("t.csv", TABLE, "", "holds no requests"),
        ("t.csv", "Output_Tokens," + TABLE + "3,1,2,3\n", ":1", "differ in case alone"),
        ("t.csv", TABLE + '1,2,"3\n', ":2", "a quotation mark is not closed within the line"),
        ("t.csv", TABLE.replace("\n", "\r") + "1,2,3\r", ":1", "holds a carriage return within the line"),
        ("t.jsonl.bz2", b"BZh91AY&SY", "", "is packed by bzip2; unpack it, or pack it by gzip"),
        ("t.jsonl.zst", b"\x28\xb5\x2f\xfd\0\0\0\0", "", "is packed by Zstandard"),
        ("t.jsonl", lines({"format": "hisparse-sim/workload/1", "limit": "x"}, GOOD), ":1", "'limit' is 'x'"),
        ("t.csv", OVERLAPPING, ":4", "session 'a' goes on after rows of another"),
        ("t.csv", AZURE + "2023-11-16 18:17:01.0,5,5\n", ":4", "arrives 3.47996 s before a line above it"),
        ("t.parquet", b"PAR1 and no more", "", "is not a whole Parquet file"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named_by_file_and_line(
    tmp_path: Path, name: str, text: str | bytes, where: str, message: str
) -> None:
    path = write(tmp_path, text, name)
    with pytest.raises(InputError) as caught:
        sessions(path)
    assert str(caught.value).startswith(f"{path}{where}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("kept", [20, 500, 5000])
def test_a_gzip_cut_short_is_named_at_the_line_where_it_ends(tmp_path: Path, kept: int) -> None:
    rows = lines(*(plain(i, 1 + i * 7919 % 1000) for i in range(2000)))
    packed = gzip.compress(rows.encode())[:kept]
    there = zlib.decompressobj(31).decompress(packed)
    path = write(tmp_path, packed, "t.jsonl.gz")
    with pytest.raises(InputError) as caught:
        sessions(path)
    named, _, problem = str(caught.value).removeprefix(f"{path}:").partition(": ")
    assert problem.startswith("the gzip is cut short")
    # The last few bytes may be held back until more follows.
    assert there.count(b"\n") - 20 <= int(named) - 1 <= there.count(b"\n")


BAD = [GOOD, "{", plain(2, 0), plain(3, 9), plain(2.5, 9), plain(4, 9)]


def test_so_many_bad_lines_are_left_out_and_told(tmp_path: Path) -> None:
    path = write(tmp_path, lines(*BAD))
    workload = make_workload(TraceSpec(path=path, skip_bad_lines=3), 0)
    assert [s.start_s for s in workload.sessions()] == [1.0, 3.0, 4.0]
    (note,) = workload.notes
    assert note.startswith("bad lines left out: 3 (")
    assert all(f"t.jsonl:{line}: " in note for line in (2, 3, 5))
    assert describe(make_workload(TraceSpec(path=path, skip_bad_lines=3), 0, check=False))["notes"] == [note]


def test_one_bad_line_too_many_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, lines(*BAD))
    with pytest.raises(InputError, match=r"t\.jsonl:5: arrives .* \(after 2 bad lines that were left out\)"):
        make_workload(TraceSpec(path=path, skip_bad_lines=2), 0)


def test_bad_requests_of_a_benchmark_and_rows_of_parquet_are_left_out_too(tmp_path: Path) -> None:
    bench = write(tmp_path, json.dumps(BENCH | {"output_lens": [5, "x", 5]}), "b.json")
    rows = parquet(tmp_path / "t.parquet", [GOOD, plain(2, 0), plain(3, 9)])
    for path, place in ((bench, ": request 2: 'output_lens' is 'x'"), (rows, ": row 2: the prompt has 0")):
        workload = make_workload(TraceSpec(path=path, skip_bad_lines=1), 0)
        assert len(list(workload.sessions())) == 2
        assert f"{path}{place}" in workload.notes[0]


def test_parquet_holds_numbers_and_times_of_any_type(tmp_path: Path) -> None:
    times = [[0.0, 1.5], [timedelta(0), timedelta(seconds=1.5)], [Decimal("0.0"), Decimal("1.5")]]
    for at, lengths in itertools.product(times, ([5, 6], [5.0, 6.0], [Decimal("5.00"), Decimal("6.00")])):
        columns = {"arrival_s": at, "prompt_tokens": lengths, "output_tokens": [3, 0]}
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        assert sent(tmp_path / "t.parquet") == [(0.0, 5, 3), (1.5, 6, 0)]
    columns = {
        "timestamp": [date(2026, 1, 1), date(2026, 1, 2)],
        "prompt_tokens": [5, 6],
        "output_tokens": [3, 0],
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert sent(tmp_path / "t.parquet") == [(0.0, 5, 3), (86_400.0, 6, 0)]


def test_lines_that_others_refer_to_are_not_left_out(tmp_path: Path) -> None:
    rows = lines(plain(0, 5, session="s", id="a"), plain(0, 5, session="s", id="b", after=["a"]))
    with pytest.raises(InputError, match=r"skip_bad_lines: lines of this file refer to those above"):
        sessions(write(tmp_path, rows), skip_bad_lines=1)


def test_a_cut_begins_at_its_first_second(tmp_path: Path) -> None:
    path = write(tmp_path, lines(*(plain(t, 10 + t) for t in range(10))))
    assert sent(path, from_s=3, to_s=6) == [(0.0, 13, 5), (1.0, 14, 5), (2.0, 15, 5)]
    with pytest.raises(InputError, match=r"workload\.from_s: no request arrives between"):
        sessions(path, from_s=30)


def test_a_scale_stretches_times_and_pauses(tmp_path: Path) -> None:
    path = write(tmp_path, lines(plain(2, 9, session="s", delay_s=1), plain(2, 9, session="s", delay_s=4)))
    (session,) = sessions(path, time_scale=0.5)
    assert (session.start_s, [r.delay_s for r in session.requests]) == (1.0, [0.5, 2.0])


def test_copies_follow_each_other_and_share_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE)
    found = sessions(path, repeat=2)
    assert [s.start_s for s in found] == [0, 1.5, 1.5, 2.25, 3.75, 3.75]
    assert [s.id for s in found] == ["t/1", "t/2", "t/3", "t/1#2", "t/2#2", "t/3#2"]
    once, twice = (describe(make_workload(TraceSpec(path=path, repeat=n), 0)) for n in (1, 2))
    assert once["prefix_hit_bound"] == twice["prefix_hit_bound"] > 0


def test_the_limit_counts_requests_of_all_copies(tmp_path: Path) -> None:
    assert len(sessions(write(tmp_path, MOONCAKE), repeat=3, limit=7)) == 7


def test_a_format_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE)
    row = {"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 1, "usage": {"prompt_tokens": 9}}
    assert sent(write(tmp_path, lines(row), "u.jsonl"), format="plain") == [(0.0, 5, 1)]
    with pytest.raises(InputError, match="a file of format azure calls them contexttokens"):
        sessions(path, format="azure")


@needs_traces
def test_mooncake_conversation_has_its_published_facts() -> None:
    facts = describe(make_workload(TraceSpec(path=SHARED / "traces" / "mooncake_conversation.jsonl"), 0))
    prompt = facts["prompt_tokens"]
    assert facts["requests"] == 12_031
    assert [round(prompt[k]) for k in ("mean", "p50", "p90", "max")] == [12_035, 6_909, 27_367, 126_195]
    assert prompt["p99"] == pytest.approx(85_401, abs=1)
    assert round(facts["output_tokens"]["mean"]) == 343
    assert facts["block_hit_bound"] == pytest.approx(0.366, abs=0.0005)
    assert facts["sessions_per_s"] == pytest.approx(3.40, abs=0.005)
    assert round(facts["last_arrival_s"] / 60) == 59
    prompts = np.array([p for _, p, _ in sent(SHARED / "traces" / "mooncake_conversation.jsonl")])
    # 32k and 65k may be thousands or powers of two.
    assert np.mean(prompts > 32_768) <= 0.0695 and np.mean(prompts > 32_000) >= 0.0685
    assert np.mean(prompts > 65_536) <= 0.0215 and np.mean(prompts > 65_000) >= 0.0205


@needs_traces
def test_azure_code_has_its_published_facts() -> None:
    facts = describe(make_workload(TraceSpec(path=SHARED / "traces" / "azure_llm_2023_code.csv"), 0))
    assert facts["requests"] == 8_819
    assert round(facts["prompt_tokens"]["mean"]) == 2_048
    assert round(facts["prompt_tokens"]["p99"]) == 7_436
    assert round(facts["output_tokens"]["mean"]) == 28


@needs_cases
def test_requests_recorded_by_other_simulators_are_read() -> None:
    found = sent(SHARED / "cases" / "44_rtx4090_llama-3.1-8b_requests.jsonl")
    assert (len(found), found[0]) == (300, (0.0, 2358, 531))
