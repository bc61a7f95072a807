"""A saved workload is the workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.scenario.workload import (
    AgenticCodingSpec,
    ConversationsSpec,
    DocumentsSpec,
    OpenSpec,
    StreamSpec,
    TraceSpec,
    WorkloadSpec,
)
from hisparse_sim.workload import make_workload
from hisparse_sim.workload.request import BlockHashes, Session, Workload
from hisparse_sim.workload.save import save

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not here")

TENANTS = ({"name": "a", "share": 2, "priority": 3}, {"name": "b", "shared_prefix_tokens": 9})
SPECS: list[WorkloadSpec] = [
    ConversationsSpec(
        conversations=5,
        concurrency=3,
        turns={"kind": "uniform", "low": 1, "high": 6},
        first_prompt_tokens=100,
        new_tokens_per_turn={"kind": "zipf", "high": 500},
        output_tokens={"kind": "lognormal", "median": 20, "sigma": 1},
        shared_prefix_tokens=30,
        think_time_s={"kind": "lognormal", "median": 3, "sigma": 2},
        tenants=TENANTS,
        subagents={"share": 0.5, "first_prompt_tokens": 40, "new_tokens_per_turn": 5, "output_tokens": 6},
    ),
    OpenSpec(
        arrivals={"kind": "gamma", "rate_per_s": 3, "burstiness": 0.3},
        requests=9,
        prompt_tokens=7,
        output_tokens=3,
    ),
    StreamSpec(requests=3, prompt_tokens=9, output_tokens=2, ramp_up_s=1.5),
    AgenticCodingSpec(sessions=3, concurrency=2),
    DocumentsSpec(sessions=4, concurrency=2),
]


def plain(workload: Workload) -> list[Any]:
    """Everything a workload says, comparable."""

    def content(value: Any) -> Any:
        return (value[0], value[1].tolist(), value[2]) if isinstance(value, BlockHashes) else value

    def session(s: Session) -> Any:
        return (
            s.id,
            s.start_s,
            s.tags,
            [
                (r.id, r.prompt_tokens, r.output_tokens, content(r.content), r.after, r.delay_s, r.priority)
                for r in s.requests
            ],
        )

    return [workload.concurrency, *map(session, workload.sessions())]


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz", "w.parquet"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_saved_workload_plays_again_exactly(tmp_path: Path, spec: WorkloadSpec, name: str) -> None:
    workload = make_workload(spec, 7)
    save(workload, tmp_path / name)
    assert plain(make_workload(TraceSpec(path=tmp_path / name), 99)) == plain(workload)


@needs_traces
@pytest.mark.parametrize("name", ["w.jsonl", "w.parquet"])
@pytest.mark.parametrize(
    ("trace", "more"),
    [
        ("kv-cache-tester/trace_0254.json", {}),
        ("kv-cache-tester/trace_0120.json", {"limit": 15, "from_s": 20, "repeat": 3, "concurrency": 4}),
        ("mooncake_conversation.jsonl", {"limit": 300, "repeat": 2}),
        ("azure_llm_2023_code.csv", {"limit": 300, "time_scale": 0.5}),
    ],
)
def test_a_saved_trace_plays_again_exactly(
    tmp_path: Path, trace: str, more: dict[str, Any], name: str
) -> None:
    workload = make_workload(TraceSpec(path=TRACES / trace, **more), 3)
    assert save(workload, tmp_path / name) == sum(len(s.requests) for s in workload.sessions())
    assert plain(make_workload(TraceSpec(path=tmp_path / name), 99)) == plain(workload)


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz", "w.parquet"])
def test_the_same_workload_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        save(make_workload(SPECS[0], 1), tmp_path / folder / name)
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_name_of_no_format_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.jsonl"):
        save(make_workload(SPECS[2], 0), tmp_path / "w.csv")
    with pytest.raises(InputError, match="cannot be written"):
        save(make_workload(SPECS[2], 0), tmp_path / "nowhere" / "w.jsonl")
    assert not list(tmp_path.iterdir())


def test_what_a_saved_line_refers_to_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    save(make_workload(SPECS[0], 1), path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    with pytest.raises(InputError, match=r"w\.jsonl:2: follows 'conversation-0/1', which is not above"):
        make_workload(TraceSpec(path=path), 0)
