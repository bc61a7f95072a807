"""Traces recorded from vLLM's own scheduler replay to the last number, and what is wrong is named."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path

import pytest

from hisparse_sim.validation import golden
from hisparse_sim.validation.replay import Replay, Totals

GOLDEN = Path(__file__).resolve().parents[2] / ".." / "shared" / "golden"
NAMES = sorted(p.stem for p in GOLDEN.glob("scenarios/*.json"))


@pytest.mark.skipif(not NAMES, reason="recorded scheduler traces are not here")
@pytest.mark.parametrize("engine", golden.ENGINES)
@pytest.mark.parametrize("name", NAMES or ["none"])
def test_a_recorded_trace_is_replayed_exactly(name, engine):
    (outcome,) = golden.replay_folder(GOLDEN, name, engine)
    assert outcome.error is None
    assert outcome.difference is None
    assert outcome.apart == 0
    assert outcome.steps > (100 if engine == "vllm-0.33" else 4)  # 0.30 often died early


@pytest.mark.skipif(not (GOLDEN / "example" / "t1.json").exists(), reason="the worked example is not here")
def test_the_worked_example_is_replayed_exactly():
    scenario = json.loads((GOLDEN / "example" / "t1.json").read_text())
    outcome = golden.compare(scenario, GOLDEN / "example" / "t1.v033.jsonl")
    assert (outcome.equal, outcome.steps) == (True, 112)
    assert golden.compare(scenario, GOLDEN / "example" / "t1.v030.jsonl", "vllm-0.30").equal


# -- a folder of our own ------------------------------------------------------------------------

SCENARIO = {
    "mode": "hisparse",
    "model": {"num_layers": 8, "index_topk": 128},
    "engine": {
        "num_gpu_blocks": 200,
        "num_host_blocks": 100,
        "max_model_len": 4096,
        "max_num_batched_tokens": 512,
    },
    "requests": [
        {"id": "a", "arrival_step": 0, "prompt_len": 700, "output_len": 5},
        {"id": "b", "arrival_step": 1, "prompt_len": 300, "output_len": 5},
    ],
}


def record(scenario: dict) -> list[dict]:
    """A trace that this package replays equally, in the recorder's format."""
    replay = Replay(scenario)
    lines, totals = [], Totals()
    for line in replay.lines():
        totals.add(line)
        by_request = {key: {"someone": line[key]} for key in ("lost", "adopted") if line.get(key)}
        lines.append({**line, **by_request})
    return [
        {"kind": "config", **replay.facts},
        *lines,
        {"kind": "totals", "error": None, **totals.record(replay)},
    ]


TRACE = record(SCENARIO)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "v033").mkdir()
    return tmp_path


def put(folder: Path, name: str, trace: list[dict] | str | None, scenario: dict | str = SCENARIO) -> None:
    text = scenario if isinstance(scenario, str) else json.dumps(scenario)
    (folder / "scenarios" / f"{name}.json").write_text(text)
    if trace is not None:
        text = trace if isinstance(trace, str) else "".join(json.dumps(r) + "\n" for r in trace)
        (folder / "v033" / f"{name}.jsonl").write_text(text)


def run(capsys, *args) -> tuple[int, list[str], str]:
    code = golden.main([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def test_equal_traces_print_one_line_each_and_exit_0(folder, capsys):
    put(folder, "one", TRACE)
    put(folder, "two", TRACE)
    code, out, err = run(capsys, folder)
    steps = len(TRACE) - 2
    assert (code, out, err) == (0, [f"one: equal {steps} steps", f"two: equal {steps} steps"], "")


def test_traces_may_be_compressed_and_equal_steps_merged(folder, capsys):
    merged = copy.deepcopy(TRACE)
    a, b = merged[3], merged[4]  # decode steps, equal in everything but their number
    assert {**a, "step": b["step"]} == b
    a["steps"] = [a.pop("step"), b["step"]]
    del merged[4]
    put(folder, "one", None)
    with gzip.open(folder / "v033" / "one.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(r) + "\n" for r in merged)
    assert run(capsys, folder)[:2] == (0, [f"one: equal {len(TRACE) - 2} steps"])


def numbers(value, path=()):
    """Paths of all numbers in a record."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


@pytest.mark.parametrize("at", range(1, len(TRACE) - 1))
def test_any_number_changed_in_a_step_is_reported_with_the_step_and_both_values(folder, capsys, at):
    for path in numbers(TRACE[at]):
        tampered = copy.deepcopy(TRACE)
        inner = tampered[at]
        for key in path[:-1]:
            inner = inner[key]
        was = inner[path[-1]]
        inner[path[-1]] = was + 1000
        put(folder, "one", tampered)
        code, out, _ = run(capsys, folder)
        step = was + 1000 if path == ("step",) else TRACE[at]["step"]
        assert code == 1
        assert out[0] == f"one: differs at step {step}"
        text = "\n".join(out[1:])
        assert f"{path[0]}: recorded" in text
        assert str(was + 1000) in text
        assert str(was) in text.partition("replayed")[2]


def test_a_changed_fact_or_total_is_reported_too(folder, capsys):
    for at in (0, -1):
        for path in numbers(TRACE[at]):
            tampered = copy.deepcopy(TRACE)
            inner = tampered[at]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] += 7
            put(folder, "one", tampered)
            code, out, _ = run(capsys, folder)
            if at == 0 and path[0] in ("engine", "model"):
                continue  # what the recording says of its engine is taken from there
            assert code == 1, path
            assert out[0] == "one: differs outside its steps"
            what = " ".join(["config" if at == 0 else "totals", *path])
            assert out[1].startswith(f"  {what}: recorded ")


def test_an_order_changed_in_the_schedule_is_a_difference(folder, capsys):
    tampered = copy.deepcopy(TRACE)
    line = next(r for r in tampered[1:] if len(r["scheduled"]) == 2)
    line["scheduled"] = dict(reversed(line["scheduled"].items()))
    put(folder, "one", tampered)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out[0] == f"one: differs at step {line['step']}"


def test_a_step_too_many_or_too_few_is_a_difference(folder, capsys):
    last = TRACE[-2]["step"]
    put(folder, "few", [*TRACE[:-2], TRACE[-1]])
    put(folder, "many", [*TRACE[:-1], {**TRACE[-2], "step": last + 1}, TRACE[-1]])
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out == [
        f"few: differs at step {last}",
        f"  step: recorded None, replayed {last}",
        f"many: differs at step {last + 1}",
        f"  step: recorded {last + 1}, replayed None",
    ]


def test_a_recording_that_was_cut_is_compared_as_far_as_it_goes(folder, capsys):
    put(folder, "one", [*TRACE[:4], {**TRACE[-1], "error": "max_steps"}])
    assert run(capsys, folder)[:2] == (0, ["one: equal 3 steps"])


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ([*TRACE[:3], "{oops"], "bad.jsonl:4: not JSON: "),
        ([*TRACE[:3], "[1, 2]"], "bad.jsonl:4: not a JSON object"),
        ([*TRACE[:3], '{"scheduled": {}}'], "bad.jsonl:4: neither a step nor facts nor totals"),
        ([*TRACE[:3], '{"steps": 7}'], "bad.jsonl:4: `steps` must be [first, last], `step` a number"),
        ([*TRACE[:3], '{"kind": "note"}'], "bad.jsonl:4: `steps` must be [first, last]"),
        (TRACE[:3], "bad.jsonl: ends before its totals: cut off"),
        (TRACE[1:], "bad.jsonl:1: does not begin with the engine's facts"),
        ([], "bad.jsonl:1: does not begin with the engine's facts"),
    ],
)
def test_a_broken_trace_is_named_with_its_line_and_the_others_still_run(folder, capsys, trace, said):
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in trace)
    put(folder, "bad", text)
    put(folder, "good", TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert said in out[0]
    assert out[0].startswith("bad: ")
    assert out[1:] == [f"good: equal {len(TRACE) - 2} steps"]


def test_a_trace_that_is_not_gzip_or_cut_short_is_named(folder, capsys):
    whole = gzip.compress("".join(json.dumps(r) + "\n" for r in TRACE).encode())
    for name, content in (("cut", whole[: len(whole) // 2]), ("text", b"no gzip")):
        put(folder, name, None)
        (folder / "v033" / f"{name}.jsonl.gz").write_bytes(content)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert [line.split(": ")[0] for line in out] == ["cut", "text"]
    assert all("cannot be read" in line for line in out)


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("{", "cannot be read: "),
        ("[]", "not a scenario to replay"),
        ({**SCENARIO, "mode": "swap"}, "mode: swap: must be one of hisparse, vanilla, cpu_offload"),
        ({k: v for k, v in SCENARIO.items() if k != "requests"}, "not a scenario to replay: KeyError"),
        ({**SCENARIO, "requests": [{"id": "a"}]}, "not a scenario to replay: KeyError"),
    ],
)
def test_a_broken_scenario_is_named_and_the_others_still_run(folder, capsys, scenario, said):
    put(folder, "bad", TRACE, scenario)
    put(folder, "good", TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert said in out[0]
    assert out[1:] == [f"good: equal {len(TRACE) - 2} steps"]


def test_a_scenario_without_a_trace_is_reported_and_not_counted(folder, capsys):
    put(folder, "alone", None)
    put(folder, "good", TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert out == ["alone: no trace for this engine", f"good: equal {len(TRACE) - 2} steps"]


def test_a_folder_without_scenarios_or_a_name_that_none_has_is_refused(folder, capsys):
    assert run(capsys, folder / "nowhere") == (
        2,
        [],
        f"error: {folder / 'nowhere'}: no scenarios/*.json here\n",
    )
    put(folder, "one", TRACE)
    code, out, err = run(capsys, folder, "--only", "two*")
    assert (code, out) == (2, [])
    assert err.startswith("error: --only: two*: no scenario of that name")


def test_only_and_json(folder, capsys):
    put(folder, "one", TRACE)
    changed = copy.deepcopy(TRACE)
    changed[2]["gpu_free"] = 3
    put(folder, "two", changed)
    put(folder, "three", TRACE)
    code, out, _ = run(capsys, folder, "--only", "t*", "--json")
    assert code == 1
    three, two = json.loads("\n".join(out))
    assert three == {
        "name": "three",
        "equal": True,
        "steps": len(TRACE) - 2,
        "first_difference": None,
        "apart": 0,
        "error": None,
    }
    assert two["first_difference"] == {"step": 1, "fields": {"gpu_free": [3, TRACE[2]["gpu_free"]]}}
    assert two["equal"] is False


def test_fields_that_the_recording_does_not_pin_down_are_counted_apart(folder, capsys):
    engine = {"num_gpu_blocks": 40, "num_cpu_chunks": 20, "max_model_len": 2048}
    scenario = {**SCENARIO, "mode": "cpu_offload", "engine": engine}
    trace = record(scenario)
    trace[1]["ext"] = {"a": [0, None, 0]}
    put(folder, "one", trace, scenario)
    assert run(capsys, folder)[:2] == (0, [f"one: equal {len(trace) - 2} steps (1 apart)"])
