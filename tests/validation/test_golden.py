"""Traces recorded from vLLM's own scheduler replay to the last number, and what is wrong is named."""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from golden_folders import SCENARIO, TRACE, put, record, run

from hisparse_sim.validation import golden

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
            what = " ".join(["config" if at == 0 else "totals", *map(str, path)])
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


def test_a_scenario_without_a_trace_is_reported_and_not_counted(folder, capsys):
    put(folder, "alone", None)
    put(folder, "good", TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 0
    assert out == ["alone: no trace for this engine", f"good: equal {len(TRACE) - 2} steps"]


def test_a_trace_without_a_scenario_is_named_and_counted(folder, capsys):
    put(folder, "good", TRACE)
    (folder / "v033" / "alone.jsonl").write_text((folder / "v033" / "good.jsonl").read_text())
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out[0].startswith(f"alone: {folder / 'scenarios' / 'alone.json'}: no such file; ")
    assert out[1:] == [f"good: equal {len(TRACE) - 2} steps"]


def test_a_folder_without_any_trace_of_the_engine_says_that_nothing_was_compared(folder, capsys):
    put(folder, "one", TRACE)
    code, out, err = run(capsys, folder, "--engine", "vllm-0.30")
    assert (code, out) == (0, ["one: no trace for this engine"])
    assert err == f"nothing was compared: {folder} has no trace of vllm-0.30 for it\n"


def test_an_engine_that_is_not_modelled_is_refused(folder, capsys):
    put(folder, "one", TRACE)
    with pytest.raises(SystemExit, match="2"):
        golden.main([str(folder), "--engine", "vllm-0.29"])
    assert "invalid choice: 'vllm-0.29'" in capsys.readouterr().err


def test_a_reader_that_leaves_and_ctrl_c_are_no_tracebacks(folder, capsys, monkeypatch):
    for name in ("one", "two"):
        put(folder, name, TRACE)
    command = [sys.executable, "-m", "hisparse_sim.validation.golden", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(golden, "compare", stop)
    assert run(capsys, folder) == (130, [], "interrupted\n")
    assert run(capsys, folder, "--json") == (130, ["[]"], "interrupted\n")


def test_a_death_that_comes_earlier_later_or_not_at_all_is_told(folder, capsys):
    engine = {"num_gpu_blocks": 20, "num_host_blocks": 100, "max_model_len": 1024}
    lengths = {"a": (0, 15, 5, 128), "b": (2, 132, 1, 128), "c": (2, 365, 3, 64)}
    fields = ("arrival_step", "prompt_len", "output_len", "prefix_len")
    requests = [
        {"id": name, "prefix_group": "g", **dict(zip(fields, values, strict=True))}
        for name, values in lengths.items()
    ]
    model = {"num_layers": 2, "index_topk": 32}
    scenario = {"mode": "hisparse", "model": model, "engine": engine, "requests": requests}
    trace = record(scenario, "0.30")
    assert trace[-1]["error"] == "schedule: ValueError: Cannot get 1 free blocks from the pool"
    traces = {
        "early": [*trace[:-2], trace[-1]],
        "late": [*trace[:-1], {**trace[-2], "step": trace[-2]["step"] + 1}, trace[-1]],
        "never": [*trace[:-1], {**trace[-1], "error": None}],
        "sums": [*trace[:-1], {**trace[-1], "scheduled_tokens": 5}],
        "other": [*trace[:-1], {**trace[-1], "error": trace[-1]["error"].replace("1", "5")}],
        "same": trace,
    }
    for name, lines in traces.items():
        put(folder, name, lines, scenario)
        (folder / "v033" / f"{name}.jsonl").rename(folder / "v030" / f"{name}.jsonl")
    code, out, _ = run(capsys, folder, "--engine", "vllm-0.30", "--json")
    assert code == 1
    found = {row["name"]: row["first_difference"] for row in json.loads(out[0])}
    words, last = trace[-1]["error"], trace[-2]["step"]
    assert found == {
        "early": {"step": last, "fields": {"step": [None, last], "error": [words, None]}},
        "late": {"step": last + 1, "fields": {"step": [last + 1, None], "error": [None, words]}},
        "never": {"step": None, "fields": {"totals error": [None, words]}},
        "other": {"step": None, "fields": {"totals error": [words.replace("1", "5"), words]}},
        "same": None,
        "sums": {
            "step": None,
            "fields": {"totals scheduled_tokens": [5, trace[-1]["scheduled_tokens"]]},
        },
    }


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
        "first_apart": None,
        "error": None,
    }
    assert two["first_difference"] == {"step": 1, "fields": {"gpu_free": [3, TRACE[2]["gpu_free"]]}}
    assert two["equal"] is False


def test_fields_that_the_recording_does_not_pin_down_are_counted_apart(folder, capsys):
    engine = {"num_gpu_blocks": 40, "num_cpu_chunks": 20, "max_model_len": 2048}
    scenario = {**SCENARIO, "mode": "cpu_offload", "engine": engine}
    trace = record(scenario)
    for line in trace[1:3]:
        line["ext"] = {"a": [0, None, 0]}
    put(folder, "one", trace, scenario)
    replayed = {"a": [0, 0, 0]}
    said = f"2 apart, first step 0: ext: recorded {trace[1]['ext']}, replayed {replayed}"
    assert run(capsys, folder)[:2] == (0, [f"one: equal {len(trace) - 2} steps ({said})"])
    (row,) = json.loads(run(capsys, folder, "--json")[1][0])
    assert row["equal"]
    assert row["first_apart"] == {"step": 0, "fields": {"ext": [trace[1]["ext"], replayed]}}


def test_a_total_of_what_never_happened_or_a_request_left_out_is_reported(folder, capsys):
    totals = TRACE[-1]
    names = sorted(totals["requests"])
    wrong = {
        "load_jobs": ({"load_jobs": 3}, "load_jobs: recorded 3, replayed 0"),
        "one request": (
            {"requests": {"a": totals["requests"]["a"]}},
            f"requests: recorded ['a'], replayed {names}",
        ),
        "no end": ({"unfinished": ["a"]}, "unfinished: recorded ['a'], replayed []"),
    }
    for name, (fields, _) in wrong.items():
        put(folder, name, [*TRACE[:-1], {**totals, **fields}])
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out == [
        line
        for name, (_, said) in sorted(wrong.items())
        for line in (f"{name}: differs outside its steps", f"  totals {said}")
    ]


def test_cache_groups_are_compared_field_by_field(folder, capsys):
    tampered = copy.deepcopy(TRACE)
    tampered[0]["groups"][3]["layers"] += 1
    put(folder, "one", tampered)
    put(folder, "two", [{**TRACE[0], "groups": None}, *TRACE[1:]])
    assert run(capsys, folder)[:2] == (
        1,
        [
            "one: differs outside its steps",
            "  config groups 3 layers: recorded 5, replayed 4",
            f"two: equal {len(TRACE) - 2} steps",
        ],
    )


def test_a_trace_that_is_there_compressed_and_plain_is_replayed_from_both(folder, capsys):
    put(folder, "one", json.dumps(TRACE[0]) + "\n{oops")
    with gzip.open(folder / "v033" / "one.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(r) + "\n" for r in TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out[0].startswith(f"one.jsonl: {folder / 'v033' / 'one.jsonl'}:2: not JSON")
    assert out[1:] == [f"one.jsonl.gz: equal {len(TRACE) - 2} steps"]
