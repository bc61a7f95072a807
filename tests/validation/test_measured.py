"""Measurements beside the simulation: agreement, contradictions, the cause, the scenario set right."""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hisparse_sim as hs
from hisparse_sim.cli.main import run
from hisparse_sim.errors import InputError
from hisparse_sim.report.startup import capacity_lines
from hisparse_sim.scenario.loader import load_scenario, scenario_from_mapping
from hisparse_sim.scenario.scenario import Scenario
from hisparse_sim.simulation.result import Result
from hisparse_sim.simulation.run import simulate
from hisparse_sim.validation.measured.bench import Bench, Sent, read_bench, read_results
from hisparse_sim.validation.measured.causes import likely_cause
from hisparse_sim.validation.measured.compare import Inputs, measure
from hisparse_sim.validation.measured.contradictions import contradictions
from hisparse_sim.validation.measured.corrected import settings_of
from hisparse_sim.validation.measured.engine_log import read_engine_log
from hisparse_sim.validation.measured.metrics import read_metrics
from hisparse_sim.validation.measured.rows import Row, apart, largest
from hisparse_sim.validation.measured.simulated import figures
from hisparse_sim.validation.measured.workload import rebuilt

ENGINE: dict[str, Any] = {"mode": "resident", "tp": 1, "max_model_len": 8192, "max_num_batched_tokens": 2048}
WORKLOAD = {"kind": "stream", "concurrency": 24, "requests": 48, "prompt_tokens": 900, "output_tokens": 300}


def scenario(engine: dict[str, Any] | None = None, **fields: Any) -> Scenario:
    mine = {"name": "mine", "model": "llama-3.1-8b", "node": "8xh200", "workload": WORKLOAD}
    return scenario_from_mapping(mine | {"engine": ENGINE | (engine or {})} | fields)


SMALL = {"kv_tokens": 12_000}
"""A pool that makes requests wait."""


@cache
def small_run() -> Result:
    return simulate(scenario(SMALL))


def bench_of(result: Result, **more: Any) -> dict[str, Any]:
    """What ``vllm bench serve`` would have saved of a simulated run."""
    done, summary = result.request_records, result.summary
    span_s = max(r.finish_s or 0 for r in done)
    output, prompt = sum(r.sampled for r in done), sum(r.prompt_tokens for r in done)
    return {
        "duration": span_s,
        "completed": len(done),
        "failed": 0,
        "request_rate": "inf",
        "max_concurrency": 24,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(done) / span_s,
        "output_throughput": output / span_s,
        "total_token_throughput": (output + prompt) / span_s,
        "mean_ttft_ms": 1000 * summary["ttft_s"]["mean"],
        "mean_tpot_ms": 1000 * summary["tpot_s"]["mean"],
        "input_lens": [r.prompt_tokens for r in done],
        "output_lens": [r.sampled for r in done],
        **more,
    }


def log_of(result: Result) -> str:
    asked = result.scenario
    lines = capacity_lines(result.pools, asked.model, asked.node, asked.engine)
    return "".join(f"INFO {line}\n" for line in lines)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A scenario with a large pool, and the benchmark and log of a run with a small one."""
    import yaml

    mine = {
        "name": "mine",
        "model": "llama-3.1-8b",
        "node": "8xh200",
        "engine": ENGINE,
        "workload": WORKLOAD,
    }
    contents = {
        "scenario": ("mine.yaml", yaml.safe_dump(mine)),
        "bench": ("result.json", json.dumps(bench_of(small_run()))),
        "log": ("vllm.log", log_of(small_run())),
    }
    found = {kind: tmp_path / name for kind, (name, _) in contents.items()}
    for kind, (_, content) in contents.items():
        found[kind].write_text(content)
    return found


# -- the whole ----------------------------------------------------------------------------------


def test_a_run_agrees_with_itself(files: dict[str, Path]) -> None:
    found = measure(scenario(SMALL), Inputs(bench=files["bench"], log=files["log"]))
    assert found.rows and all(row.rel_error == pytest.approx(0, abs=1e-9) for row in found.rows)
    assert (found.contradictions, found.cause, found.problems) == ([], [], [])


def test_the_log_sets_the_pool_right_and_so_the_figures(files: dict[str, Path]) -> None:
    found = measure(scenario(), Inputs(bench=files["bench"], log=files["log"]))
    assert {one.what for one in found.contradictions} == {
        "available KV memory a GPU, GiB",
        "KV cache size, tokens",
        "maximum concurrency at 8,192 tokens",
    }
    ttft = next(row for row in found.rows if row.metric == "ttft_s_mean")
    assert ttft.rel_error is not None and ttft.rel_error < -0.5
    assert ttft.corrected_error == pytest.approx(0, abs=0.02)  # GiB are printed with two decimals
    assert "likely cause: what the inputs contradict (available KV" in found.cause[1]


def test_the_corrected_scenario_loads_and_has_the_benchmarks_requests(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "right.yaml"
    argv = ["validate", "measured", "--scenario", str(files["scenario"]), "--bench", str(files["bench"])]
    assert run([*argv, "--log", str(files["log"]), "--corrected", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    right = load_scenario(out)
    assert right.engine.available_kv_gib == shown["corrections"]["engine.available_kv_gib"]
    assert right.engine.kv_tokens is None and right.model.name == "llama-3.1-8b"
    again = simulate(right).summary
    assert again["ttft_s"]["mean"] == pytest.approx(small_run().summary["ttft_s"]["mean"], rel=0.02)
    assert shown["corrected"] == [str(out), str(tmp_path / "right-requests.jsonl")]


@pytest.mark.parametrize("bad", ["bench", "log", "metrics"])
def test_a_bad_input_loses_itself_alone(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    (tmp_path / "empty").write_text("")
    argv = ["validate", "measured", "--scenario", str(files["scenario"])]
    for kind in ("bench", "log"):
        argv += [f"--{kind}", str(tmp_path / "empty" if kind == bad else files[kind])]
    argv += ["--metrics", str(tmp_path / "empty")] if bad == "metrics" else []
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert err == f"error: {tmp_path / 'empty'}: is empty\n"
    assert ("ttft_s_mean" in out) == (bad != "bench")
    assert ("KV cache size, tokens" in out) == (bad != "log")


def test_nothing_usable_is_an_error_and_no_simulation(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["validate", "measured", "--scenario", str(files["scenario"]), "--log", str(tmp_path / "none.log")]
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {tmp_path / 'none.log'}: no such file\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "give at least one of --bench, --metrics and --log"),
        (["--log", "x", "--result", "2"], "--result: chooses among the results of --bench"),
        (["--log", ""], "is empty"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert run(["validate", "measured", "--scenario", str(files["scenario"]), *argv]) == 2
    assert words in capsys.readouterr().err


def test_the_replicas_that_a_log_tells_of_are_simulated(files: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(files["log"].read_text(encoding="utf-8") + "INFO config: data_parallel_size=2\n")
    corrected = tmp_path / "right.yaml"
    found = hs.measured(files["scenario"], bench=files["bench"], log=log, corrected=corrected)
    assert found.found.settings["engine.dp"] == 2
    rows = found.table.set_index("metric")
    # Half of the clients each, with a pool as large as the one that both shared.
    assert rows.loc["ttft_s_mean", "corrected"] < 0.5 * rows.loc["ttft_s_mean", "measured"]
    right = hs.simulate(corrected)
    assert right.summary["replicas"] == 2
    assert rows.loc["output_tokens_per_s", "corrected"] == pytest.approx(right.summary["output_tokens_per_s"])


def test_a_scenario_that_cannot_be_set_right_is_named_once_and_not_written(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, corrected = tmp_path / "vllm.log", tmp_path / "right.yaml"
    # Of another model: longer than the scenario's allows.
    lines = "GPU KV cache size: 900,000 tokens", "Maximum concurrency for 262,144 tokens per request: 3.43x"
    log.write_text("".join(f"INFO {line}\n" for line in lines))
    argv = ["--scenario", str(files["scenario"]), "--log", str(log), "--corrected", str(corrected)]
    assert run(["validate", "measured", *argv]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "the scenario set right: engine.max_model_len: 262,144 tokens is longer" in error
    assert not corrected.exists() and not list(tmp_path.glob(".*"))


def test_the_most_that_runs_is_counted_over_all_replicas() -> None:
    two = simulate(scenario({"dp": 2}))
    assert figures(two)["running_max"] == 24
    assert figures(small_run())["running_max"] == small_run().steps["running"].max()


def test_what_the_simulator_refuses_is_named_and_what_was_measured_is_shown(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["validate", "measured", "--scenario", str(files["scenario"]), "--bench", str(files["bench"])]
    assert run([*argv, "--set", "engine.gpu_memory_utilization=0.01"]) == 2
    out, err = capsys.readouterr()
    assert "ttft_s_mean" in out and "not simulated: mine" in err


def test_an_unwritable_place_is_named(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["validate", "measured", "--scenario", str(files["scenario"]), "--log", str(files["log"])]
    assert run([*argv, "--corrected", str(files["log"].parent / "no" / "x.yaml")]) == 2
    assert "x.yaml: cannot be written" in capsys.readouterr().err


# -- workloads ----------------------------------------------------------------------------------


def test_the_scenarios_workload_is_used_without_lengths_and_what_differs_is_said(
    files: dict[str, Path],
) -> None:
    bench = bench_of(small_run())
    del bench["input_lens"]
    bench["total_output_tokens"] //= 2
    files["bench"].write_text(json.dumps(bench))
    found = measure(scenario(SMALL), Inputs(bench=files["bench"]))
    (one,) = found.contradictions
    assert found.workload == "the scenario's"
    assert (one.what, one.assumed, one.found) == ("mean output tokens", 300, 150)
    assert one.settings["workload"] == WORKLOAD | {"output_tokens": 150}


@pytest.mark.parametrize(
    ("bench", "arrivals", "clients"),
    [
        (Bench("bench", "", sent=[Sent(1, 1, 7.0), Sent(2, 1, 5.0)]), [0.0, 2.0], None),
        (Bench("bench", "", sent=[Sent(1, 1)] * 2, max_concurrency=3), [None, None], 3),
        (Bench("bench", "", sent=[Sent(1, 1)] * 2), [0.0, 0.0], None),
    ],
)
def test_requests_come_when_the_benchmark_sent_them(
    tmp_path: Path, bench: Bench, arrivals: list[float | None], clients: int | None
) -> None:
    spec = rebuilt(bench, tmp_path / "r.jsonl", seed=0)
    assert spec is not None and spec.concurrency == clients
    rows = [json.loads(text) for text in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [row.get("arrival_s") for row in rows] == arrivals


def test_a_finite_rate_without_start_times_is_drawn(tmp_path: Path) -> None:
    bench = Bench("bench", "", sent=[Sent(1, 1)] * 400, request_rate_per_s=10.0)
    rebuilt(bench, tmp_path / "r.jsonl", seed=0)
    last = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
    assert last["arrival_s"] == pytest.approx(40, rel=0.15)
    assert "drawn at 10 requests a second" in bench.notes[0]


# -- contradictions -----------------------------------------------------------------------------


def said(tmp_path: Path, text: str, asked: Scenario) -> dict[str, Any]:
    path = tmp_path / "vllm.log"
    path.write_text(text)
    return settings_of(contradictions(asked, [read_engine_log(path)]))


def test_hisparse_lines_of_a_log_correct_mode_blocks_and_host_pool(tmp_path: Path) -> None:
    asked = load_scenario("stream-1m-8xh200")
    small = asked.model_copy(
        update={"engine": asked.engine.model_copy(update={"host_pool_gib": 384.0, "available_kv_gib": 25.94})}
    )
    from hisparse_sim.memory.budget import size_pools

    pools = size_pools(small.model, small.node, small.engine)
    text = "".join(f"INFO {s}\n" for s in capacity_lines(pools, small.model, small.node, small.engine))
    found = said(tmp_path, text, asked)
    assert found["engine.host_pool_gib"] == 384 and found["engine.available_kv_gib"] == 25.94
    assert "engine.hot_rows" not in found and "engine.mode" not in found
    resident = asked.model_copy(update={"engine": asked.engine.model_copy(update={"mode": "resident"})})
    assert said(tmp_path, text, resident)["engine.mode"] == "hisparse"


def test_a_log_of_the_same_engine_contradicts_nothing(tmp_path: Path) -> None:
    asked = load_scenario("stream-1m-8xh200")
    from hisparse_sim.memory.budget import size_pools

    pools = size_pools(asked.model, asked.node, asked.engine)
    text = "".join(f"INFO {s}\n" for s in capacity_lines(pools, asked.model, asked.node, asked.engine))
    assert said(tmp_path, text, asked) == {}


def test_settings_of_a_log_are_set_against_the_scenarios(tmp_path: Path) -> None:
    text = (
        "vLLM API server version 0.30.2\n"
        "non-default args: {'max_model_len': 4096, 'gpu_memory_utilization': 0.5, "
        "'kv_cache_dtype': 'fp8_e4m3'}\n"
    )
    assert said(tmp_path, text, scenario()) == {
        "engine.version": "0.30",
        "engine.max_model_len": 4096,
        "engine.gpu_memory_utilization": 0.5,
        "engine.kv_cache_dtype": "fp8",
    }


def test_acceptance_by_position_corrects_that_of_the_scenario(tmp_path: Path) -> None:
    drafts = load_scenario("stream-1m-8xh200", overrides=["engine.mtp=3"])
    text = (
        "== Serving Benchmark Result ====\nSuccessful requests: 3\nBenchmark duration (s): 4.5\n"
        "Total input tokens: 30\nTotal generated tokens: 60\nPer-position acceptance (%):\n"
        "  Position 0:     36.59\n  Position 1:    20.39\n  Position 2:     7.00\n" + "=" * 50
    )
    (tmp_path / "out.txt").write_text(text)
    bench = read_bench(tmp_path / "out.txt")
    shares = [0.3659, 0.2039, 0.07]
    assert settings_of(contradictions(drafts, [bench])) == {"engine.mtp_acceptance": shares}
    assert contradictions(load_scenario("stream-1m-8xh200"), [bench]) == []  # it drafts nothing
    alike = load_scenario("stream-1m-8xh200", overrides=["engine.mtp=3", f"engine.mtp_acceptance={shares}"])
    assert contradictions(alike, [bench]) == []


def test_an_engine_that_refused_to_start_says_how_long_it_may(tmp_path: Path) -> None:
    text = (
        "ValueError: To serve at least one request with the model's max seq len (30000), (6.66 GiB KV cache "
        "is needed, which is larger than the available KV cache memory (5.44 GiB). Based on the available "
        "memory, the estimated maximum model length is 13528.\n"
    )
    assert said(tmp_path, text, scenario())["engine.max_model_len"] == 13_528


# -- errors -------------------------------------------------------------------------------------


def test_the_largest_error_is_that_of_the_largest_ratio() -> None:
    rows = [
        Row("ttft_s_mean", "bench", 10.0, 2.0),  # a fifth
        Row("tpot_s_mean", "bench", 0.1, 0.3),  # three times
        Row("requests_failed", "bench", 2, 0),  # not weighed
    ]
    assert largest(rows) is rows[0]
    assert largest(rows[2:]) is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("prefix_hit_rate", 0.6, 0.0), ("gpu_kv_usage_max", 0.4, 0.2)], "share other beginnings"),
        ([("draft_acceptance", 0.2, 0.6), ("tpot_s_mean", 0.04, 0.03)], "drafts are accepted otherwise"),
        ([("hot_hit_rate", 0.9, 0.4), ("tpot_s_mean", 0.04, 0.06)], "selected rows repeat otherwise"),
        ([("ttft_s_mean", 60.0, 0.1), ("gpu_kv_usage_max", 1.0, 0.2)], "KV memory was full (100%)"),
        ([("ttft_s_mean", 60.0, 10.0), ("tpot_s_mean", 0.03, 0.01)], "the engine's speed"),
        ([("tpot_s_mean", 0.1, 0.03), ("running_mean", 30, 10)], "another number of requests at a time"),
        ([("tpot_s_mean", 0.1, 0.03), ("running_mean", 30, 30)], "the price of steps (profile p)"),
        ([("waiting_max", 30, 0), ("running_mean", 10, 10)], "other requests than simulated"),
        ([("ttft_s_p50", 14.5, 9.4), ("tpot_s_p50", 0.0346, 0.0349)], "prefill, not decode"),
        (
            [("total_tokens_per_s", 4640, 5570), ("ttft_s_mean", 13.4, 11.0), ("tpot_s_mean", 0.035, 0.036)],
            "prefill, not decode",
        ),
        (
            [("output_tokens_per_s", 500, 900), ("ttft_s_mean", 13.4, 13.0), ("tpot_s_mean", 0.04, 0.02)],
            "decode, not prefill",
        ),
        (
            [("ttft_s_p50", 60, 0.1), ("tpot_s_p50", 0.03, 0.03), ("gpu_kv_usage_max", 1.0, 0.2)],
            "KV memory was full (100%)",
        ),
    ],
)
def test_the_cause_is_the_first_other_figure_that_would_bring_it_about(
    rows: list[tuple[str, float, float]], words: str
) -> None:
    made = [Row(metric, "log", measured, found) for metric, measured, found in rows]
    assert words in likely_cause(made, [], {"calibration": "p"})[1]
    assert likely_cause([Row("ttft_s_mean", "log", 1.0, 1.0)], [], {}) == []


@pytest.mark.parametrize(
    ("metric", "measured", "found"),
    [("waiting_mean", 0.0, 0.01), ("prefix_hit_rate", 0.0, 0.0003), ("ttft_s_mean", 0.0001, 0.0)],
)
def test_next_to_nothing_is_no_error(metric: str, measured: float, found: float) -> None:
    assert apart(metric, measured, found) < 0.1


# -- in Python ----------------------------------------------------------------------------------


def test_the_same_in_python(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    found = hs.measured(files["scenario"], bench=files["bench"], log=files["log"], metrics=tmp_path / "empty")
    row = found.table.set_index("metric").loc["ttft_s_mean"]
    assert row["rel_error"] < -0.5 and abs(row["corrected_rel_error"]) < 0.02
    assert found.problems == [f"{tmp_path / 'empty'}: is empty"]
    assert "likely cause" in found.cause and len(found.contradictions) == 3
    assert "KV cache size" in found._repr_html_()
    with pytest.raises(InputError, match="give at least one of"):
        hs.measured(files["scenario"])


# -- damage -------------------------------------------------------------------------------------


def texts() -> dict[str, str]:
    """One good input of each kind."""
    ranged = {
        "data": {"result": [{"metric": {"__name__": "vllm:num_requests_running"}, "values": [[1, "2"]]}]}
    }
    return {
        "json": json.dumps(bench_of(small_run())),
        "table": "== Serving Benchmark Result ====\nSuccessful requests: 3\nBenchmark duration (s): 4.5\n"
        "Total input tokens: 30\nTotal generated tokens: 60\nMean TTFT (ms): 12.5\n" + "=" * 50,
        "lines": '{"input_toks": 5, "output_toks": 7, "start_time": 1.5, "latency": 2.5, "ttft": 0.5}\n' * 3,
        "scrape": 'vllm:num_requests_running{engine="0"} 3\nvllm:generation_tokens_total 9.0\n',
        "range": json.dumps(ranged),
        "csv": "t,running,waiting\n1,2,3\n2,3,4\n",
        "log": log_of(small_run())
        + "Avg generation throughput: 1.5 tokens/s, Running: 3 reqs, Waiting: 4 reqs\n",
    }


KINDS = ("json", "table", "lines", "scrape", "range", "csv", "log")
DAMAGE = ("1.2.3", ",", "-1", "1e400", "NaN", "null", "[]", '"x"', "9" * 40, "\n", "\0", "\ufffd", "{", "}")


@given(data=st.data(), kind=st.sampled_from(KINDS))
@settings(max_examples=150, deadline=None)
def test_damage_is_refused_with_the_file_or_leaves_finite_figures(data: st.DataObject, kind: str) -> None:
    text = texts()[kind]
    for _ in range(data.draw(st.integers(1, 3))):
        numbers = [m.span() for m in re.finditer(r"[\d.]+", text)] or [(0, 0)]
        start, end = data.draw(st.sampled_from(numbers))
        text = text[:start] + data.draw(st.sampled_from(DAMAGE)) + text[end:]
    text = text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_text(text, encoding="utf-8")
        for read in (read_results, lambda p: read_metrics([p]), read_engine_log):
            try:
                found = read(path)
            except InputError as error:
                assert str(path) in str(error)
                continue
            for one in found[0] if isinstance(found, tuple) else [found]:
                assert all(0 <= value < 1e20 for value in one.figures.values())
