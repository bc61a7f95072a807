"""Whatever is wrong with a scenario or a trace is named with file and line, and the others still run."""

from __future__ import annotations

import copy
import gzip
import json
import os

import pytest
from golden_folders import SCENARIO, TRACE, put, record, run
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.validation import golden


def changed(record: dict, **fields) -> dict:
    return {**record, **fields}


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ([*TRACE[:3], "{oops"], ":4: not JSON: "),
        ([*TRACE[:3], "[1, 2]"], ":4: not a JSON object"),
        ([*TRACE[:3], ""], ":4: not JSON: "),
        ([*TRACE[:3], '{"step": NaN}'], ":4: not JSON: NaN is no number"),
        ([*TRACE[:3], '{"step": 3, "step": 3}'], ":4: not JSON: 'step' is given twice"),
        ([*TRACE[:3], '{"step": %s}' % ("9" * 5000)], ":4: not JSON: Exceeds the limit"),
        ([*TRACE[:3], "[" * 100_000], ":4: not JSON: "),
        ([*TRACE[:3], '{"scheduled": {}}'], ":4: a step has either `step`, a number, or `steps`"),
        ([*TRACE[:3], '{"step": 3, "steps": [3, 4]}'], ":4: a step has either `step`, a number, or `steps`"),
        ([*TRACE[:3], '{"steps": 7}'], ":4: steps: 7: "),
        ([*TRACE[:3], '{"steps": [3]}'], ":4: steps: [3]: "),
        ([*TRACE[:3], '{"steps": [4, 3]}'], ":4: steps: [4, 3] must be [first, last]"),
        ([*TRACE[:3], '{"kind": "note"}'], ":4: kind: 'note' is neither a step nor totals"),
        ([*TRACE[:3], changed(TRACE[3], gpufree=7)], ":4: gpufree: unknown field; did you mean 'gpu_free'"),
        ([*TRACE[:3], changed(TRACE[3], zzz=None)], ":4: zzz: unknown field; known are adopted, "),
        ([*TRACE[:3], changed(TRACE[3], gpu_free="7")], ":4: gpu_free: '7' is not a whole number"),
        ([*TRACE[:3], changed(TRACE[3], gpu_free=7.5)], ":4: gpu_free: 7.5 is not a whole number"),
        ([*TRACE[:3], changed(TRACE[3], running=True)], ":4: running: True is not a whole number"),
        ([*TRACE[:3], changed(TRACE[3], scheduled=["a"])], ":4: scheduled: ['a']: "),
        ([*TRACE[:3], changed(TRACE[3], reqs={"a": 3})], ":4: reqs.a: 3: "),
        ([*TRACE[:3], changed(TRACE[3], step=-1)], ":4: step: -1 is not allowed, must be at least 0"),
        ([changed(TRACE[0], gpus=8), *TRACE[1:]], ":1: gpus: unknown field"),
        ([changed(TRACE[0], engine={"max_len": 8}), *TRACE[1:]], ":1: engine.max_len: unknown field"),
        (
            [changed(TRACE[0], vllm="0.29.1"), *TRACE[1:]],
            ":1: vllm: 0.29.1 is not modelled; known are 0.30 and 0.33",
        ),
        (
            [changed(TRACE[0], vllm="0.30.0"), *TRACE[1:]],
            ":1: vllm: recorded from 0.30.0, which --engine vllm-0.30 replays",
        ),
        ([*TRACE[:-1], changed(TRACE[-1], tokens=8)], f":{len(TRACE)}: tokens: unknown field"),
        ([*TRACE[:-1], changed(TRACE[-1], requests=[])], f":{len(TRACE)}: requests: []: "),
        ([*TRACE, TRACE[-1]], f":{len(TRACE) + 1}: comes after the totals, which end a trace"),
        ([*TRACE, TRACE[-2]], f":{len(TRACE) + 1}: comes after the totals, which end a trace"),
        (TRACE[:3], ": ends before its totals: cut off"),
        (TRACE[:1], ": ends before its totals: cut off"),
        (TRACE[1:], ":1: does not begin with the engine's facts"),
        ([], ": is empty; a trace begins with the engine's facts"),
    ],
)
def test_a_broken_trace_is_named_with_its_line_and_the_others_still_run(folder, capsys, trace, said):
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in trace)
    put(folder, "bad", text)
    put(folder, "good", TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out[0].startswith(f"bad: {folder / 'v033' / 'bad.jsonl'}{said}")
    assert out[1:] == [f"good: equal {len(TRACE) - 2} steps"]


def test_a_trace_that_is_not_what_its_name_says_is_named(folder, capsys):
    whole = gzip.compress("".join(json.dumps(r) + "\n" for r in TRACE).encode())
    spoilt = whole[:300] + bytes(b ^ 255 for b in whole[300:340]) + whole[340:]
    contents = {
        "cut": whole[: len(whole) // 2],
        "latin": gzip.compress(b"\xff"),
        "spoilt": spoilt,
        "text": b"no",
    }
    for name, content in contents.items():
        put(folder, name, None)
        (folder / "v033" / f"{name}.jsonl.gz").write_bytes(content)
    put(folder, "folder", None)
    (folder / "v033" / "folder.jsonl").mkdir()
    put(folder, "pipe", None)
    os.mkfifo(folder / "v033" / "pipe.jsonl")
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert [line.split(": ")[0] for line in out] == ["cut", "folder", "latin", "pipe", "spoilt", "text"]
    for line in out:
        name, _, said = line.partition(": ")
        assert said.startswith(f"{folder / 'v033' / name}.jsonl")
        assert (
            "is a folder" if name == "folder" else "is a pipe" if name == "pipe" else "cannot be read"
        ) in said


REQUEST = SCENARIO["requests"][0]


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ('{\n"mode"', ":2: not JSON: "),
        ("[]", ":1: not a JSON object"),
        ("", ":1: not JSON: "),
        (
            {**SCENARIO, "mode": "swap"},
            ":2: mode: 'swap' is not one of 'hisparse', 'vanilla' or 'cpu_offload'",
        ),
        ({k: v for k, v in SCENARIO.items() if k != "requests"}, ": requests: missing"),
        ({**SCENARIO, "requests": {}}, ":13: requests: {}: "),
        ({**SCENARIO, "requests": [{"id": "a"}]}, ":14: requests.0.arrival_step: missing"),
        ({**SCENARIO, "requests": [REQUEST, REQUEST]}, ": requests.1.id: 'a' is the name of two requests"),
        ({**SCENARIO, "requests": [{**REQUEST, "prompt": 7}]}, ":19: requests.0.prompt: unknown field"),
        (
            {**SCENARIO, "requests": [{**REQUEST, "prompt_len": 0}]},
            ":17: requests.0.prompt_len: 0 is not allowed",
        ),
        ({**SCENARIO, "engine": {"num_gpu_block": 9}}, ":8: engine.num_gpu_block: unknown field"),
        ({**SCENARIO, "engine": {"block_size": 0}}, ":8: engine.block_size: 0 is not allowed"),
        ({**SCENARIO, "engine": {"version": "0.29"}}, ":8: engine.version: unknown field"),
        ({**SCENARIO, "model": {"num_layers": 10**9}}, ":4: model.num_layers: 1000000000 is not allowed"),
        ({**SCENARIO, "gpus": 8}, ":27: gpus: unknown field"),
    ],
)
def test_a_broken_scenario_is_named_with_its_line_and_the_others_still_run(folder, capsys, scenario, said):
    put(folder, "bad", TRACE, scenario if isinstance(scenario, str) else json.dumps(scenario, indent=1))
    put(folder, "good", TRACE)
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out[0].startswith(f"bad: {folder / 'scenarios' / 'bad.json'}{said}")
    assert out[1:] == [f"good: equal {len(TRACE) - 2} steps"]


HALF = {"num_gpu_blocks": 99}


@pytest.mark.parametrize(
    ("mode", "engine", "model", "said"),
    [
        ("vanilla", {}, {}, "engine.num_gpu_blocks: missing; mode vanilla needs it, or gpu_kv_bytes"),
        ("hisparse", HALF, {}, "engine.num_host_blocks: missing; mode hisparse needs it, or host_pool_gib"),
        ("cpu_offload", HALF, {}, "engine.num_cpu_chunks: missing; mode cpu_offload needs it, or cpu_off"),
        ("vanilla", {"gpu_kv_bytes": 99}, {}, "engine.gpu_kv_bytes: 99 does not hold one block of 3452160"),
        (
            "vanilla",
            HALF,
            {"index_skip_topk_offset": 0},
            "model.index_skip_topk_offset: 0 leaves layer 0 with",
        ),
        (
            "vanilla",
            HALF | {"max_model_len": 299},
            {},
            "requests.0.prompt_len: 700 is more than max_model_len",
        ),
    ],
)
def test_what_the_replay_finds_out_is_named_with_its_line(folder, capsys, mode, engine, model, said):
    scenario = {**SCENARIO, "mode": mode, "engine": engine, "model": model}
    put(folder, "bad", [{"kind": "config"}, TRACE[-1]], json.dumps(scenario))
    code, out, _ = run(capsys, folder)
    assert code == 1
    assert out[0].startswith(f"bad: {folder / 'scenarios' / 'bad.json'}:1: {said}")


SIZES = st.sampled_from([1, 2, 63, 64, 65, 128, 300, 5000])
ENGINES = st.fixed_dictionaries(
    {
        "num_gpu_blocks": st.sampled_from([1, 2, 12, 40, 200, 10**8]),
        "num_host_blocks": st.sampled_from([1, 2, 12, 40, 200, 10**8]),
        "num_cpu_chunks": st.sampled_from([0, 1, 12, 10**8]),
        "max_model_len": st.sampled_from([1, 64, 65, 400, 10**9]),
        "max_num_batched_tokens": SIZES,
        "max_num_seqs": st.sampled_from([1, 2, 100]),
        "long_prefill_token_threshold": st.sampled_from([0, 1, 70]),
        "enable_chunked_prefill": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "async_scheduling": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.01, 0.999]),
        "delay": st.sampled_from([0, 1, 2, 30]),
        "store_delay": st.sampled_from([None, 0, 9]),
        "load_delay": st.sampled_from([None, 0, 9]),
        "shared_host_pool": st.booleans(),
        "device_buffer_size": st.sampled_from([None, 1, 65]),
        "block_size": st.sampled_from([1, 16, 64]),
    }
)
MODELS = st.fixed_dictionaries(
    {
        "num_layers": st.sampled_from([1, 2, 8, 78]),
        "index_topk": st.sampled_from([1, 64, 2048]),
        "index_topk_freq": st.sampled_from([1, 4]),
    }
)
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "arrival_step": st.integers(0, 9),
            "prompt_len": SIZES,
            "output_len": SIZES,
            "priority": st.sampled_from([None, -1, 3]),
            "prefix_group": st.sampled_from([None, "g", 7]),
            "prefix_len": st.sampled_from([None, 0, 64, 200]),
        }
    ),
    max_size=6,
)


@pytest.mark.parametrize("version", ["0.33", "0.30"])
@pytest.mark.parametrize("mode", ["hisparse", "vanilla", "cpu_offload"])
@settings(max_examples=50)
@given(engine=ENGINES, model=MODELS, requests=REQUESTS)
def test_scenarios_at_the_bounds_are_replayed_too(tmp_path_factory, mode, version, engine, model, requests):
    for number, request in enumerate(requests):
        request["id"] = f"r{number}"
        request["prompt_len"] = min(request["prompt_len"], engine["max_model_len"])
    scenario = {"mode": mode, "model": model, "engine": engine, "requests": requests}
    trace = record(scenario, version, steps=200)
    folder = tmp_path_factory.mktemp("folder")
    for name in ("scenarios", "v033", "v030"):
        (folder / name).mkdir()
    put(folder, "one", trace, scenario)
    (folder / "v033" / "one.jsonl").rename(folder / f"v{version.replace('.', '')}" / "one.jsonl")
    (outcome,) = golden.replay_folder(folder, engine=f"vllm-{version}")
    assert (outcome.error, outcome.difference, outcome.steps) == (None, None, len(trace) - 2)


JUNK = st.sampled_from(
    [None, True, -1, 0, 1, 3, 10**9, 1.5, "", "a", [], [0], [3, 1], {}, {"a": 1}, {"zz": 0}]
)


def places(value, path=()):
    """Paths to everything in a record."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


@pytest.mark.parametrize("engine", golden.ENGINES)
@settings(max_examples=150)
@given(data=st.data())
def test_whatever_a_file_holds_is_one_line_and_an_exit_code(tmp_path_factory, engine, data):
    folder = tmp_path_factory.mktemp("folder")
    scenario, trace = copy.deepcopy(SCENARIO), copy.deepcopy(TRACE)
    record = data.draw(st.sampled_from([scenario, *trace]))
    path = data.draw(st.sampled_from(list(places(record))))
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[path[-1]] = data.draw(JUNK)
    else:
        del inner[path[-1]]
    for name in ("scenarios", "v033", "v030"):
        (folder / name).mkdir()
    put(folder, "one", trace, scenario)
    (folder / "v033" / "one.jsonl").rename(folder / golden.ENGINES[engine] / "one.jsonl")
    (outcome,) = golden.replay_folder(folder, engine=engine)
    if outcome.error:
        assert str(folder) in outcome.error
