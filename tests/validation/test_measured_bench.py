"""Results of benchmarks: JSON, printed tables and a line a request; what is none is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.bench import read_bench, read_results

RESULT: dict[str, Any] = {
    "date": "20260903-101530",
    "backend": "vllm",
    "model_id": "zai-org/GLM-5.3-FP8",
    "request_rate": "inf",
    "max_concurrency": 4,
    "duration": 20.0,
    "completed": 3,
    "failed": 1,
    "total_input_tokens": 600,
    "total_output_tokens": 60,
    "request_throughput": 0.15,
    "output_throughput": 3.0,
    "total_token_throughput": 33.0,
    "mean_ttft_ms": 200.0,
    "median_ttft_ms": 150.0,
    "p99_ttft_ms": 400.0,
    "mean_tpot_ms": 30.0,
    "max_concurrent_requests": 4,
}
LISTS = {
    "input_lens": [100, 200, 300, 50],
    "output_lens": [10, 20, 30, 0],
    "start_times": [105.0, 101.0, 102.0, 103.0],
    "ttfts": [0.1, 0.2, 0.3, 0.0],
}
TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     32
Failed requests:                         0
Maximum request concurrency:             8
Request rate configured (RPS):           10.00
Benchmark duration (s):                  62.23
Total input tokens:                      256000
Total generated tokens:                  32768
Request throughput (req/s):              0.51
Total token throughput (tok/s):          4640.43
---------------Time to First Token----------------
Mean TTFT (ms):                          13395.44  ·
Median TTFT (ms):                        14494.06
---------------Speculative Decoding---------------
Acceptance rate (%):                     21.33
==================================================
"""


def saved(tmp_path: Path, content: Any, name: str = "result.json") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_result_that_is_not_detailed_has_figures_and_no_requests(tmp_path: Path) -> None:
    bench = read_bench(saved(tmp_path, RESULT))
    assert bench.figures["ttft_s_mean"] == pytest.approx(0.2)
    assert bench.figures["ttft_s_p50"] == pytest.approx(0.15)
    assert (bench.figures["duration_s"], bench.requests, bench.sent) == (20.0, 4, [])
    assert bench.ended is not None and bench.ended.hour == 10
    assert not bench.problems


def test_a_detailed_result_has_its_requests_and_more_percentiles(tmp_path: Path) -> None:
    bench = read_bench(saved(tmp_path, RESULT | LISTS))
    assert [s.prompt_tokens for s in bench.sent] == [100, 200, 300, 50]
    assert bench.sent[3].output_tokens == 1  # failed: sent for its prompt
    assert bench.figures["ttft_s_mean"] == pytest.approx(0.2)  # its own figure stays
    assert bench.figures["ttft_s_p90"] == pytest.approx(0.28)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"output_lens": [1]}, "output_lens has 1 values, input_lens 4"),
        ({"input_lens": [1, "x", 3, 4]}, "hold other than numbers"),
    ],
)
def test_lists_that_do_not_fit_cost_the_requests_alone(
    tmp_path: Path, lists: dict[str, Any], words: str
) -> None:
    bench = read_bench(saved(tmp_path, RESULT | LISTS | lists))
    assert bench.figures["duration_s"] == 20.0 and not bench.sent
    assert words in bench.problems[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("{}", "holds no JSON object with figures"),
        ("[]", "is an empty list"),
        (json.dumps(RESULT)[:-9], "is no whole JSON"),
        ({"records": []}, "it seems to be NVIDIA AIPerf; it has no duration"),
        ({"duration": 1, "completed": 2, "total_output_tokens_retokenized": 3}, "SGLang's bench_serving"),
        (RESULT | {"completed": 0}, "is empty: no request completed"),
        ("just words", "is no result of vllm bench serve"),
        (TABLE[:300], "the table is cut before prompt_tokens"),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, content: Any, words: str) -> None:
    path = saved(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_bench(path)
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_a_figure_that_is_none_is_named_and_left_out(tmp_path: Path) -> None:
    bench = read_bench(saved(tmp_path, RESULT | {"mean_ttft_ms": -1, "median_ttft_ms": "fast"}))
    assert "ttft_s_mean" not in bench.figures and "ttft_s_p99" in bench.figures
    assert len(bench.problems) == 2


def test_the_printed_table_is_read_with_its_rate_and_drafts(tmp_path: Path) -> None:
    bench = read_bench(saved(tmp_path, f"INFO before\n{TABLE}after\n", "out.txt"))
    assert bench.figures["ttft_s_mean"] == pytest.approx(13.39544)  # a stray dot after it
    assert bench.figures["draft_acceptance"] == pytest.approx(0.2133)
    assert (bench.request_rate_per_s, bench.max_concurrency) == (10.0, 8)
    assert not bench.problems


def test_a_table_without_its_end_is_used_and_named(tmp_path: Path) -> None:
    bench = read_bench(saved(tmp_path, TABLE[:700], "out.txt"))
    assert bench.figures["duration_s"] == 62.23
    assert "the table is cut before its last line" in bench.problems[0]


@pytest.mark.parametrize("both", [TABLE * 2, json.dumps(RESULT) + "\n" + json.dumps(RESULT)])
def test_one_of_several_results_must_be_chosen(tmp_path: Path, both: str) -> None:
    path = saved(tmp_path, both)
    with pytest.raises(InputError, match=r"holds 2 results; choose one with --result N\. 1: "):
        read_bench(path)
    assert read_bench(path, which=2).figures == read_results(path)[0][1].figures
    with pytest.raises(InputError, match="there are 2 results"):
        read_bench(path, which=3)


def request(i: int, **more: Any) -> dict[str, Any]:
    return {
        "request_id": i,
        "input_toks": 100,
        "output_toks": 11,
        "arrival_time": 1.7e9 + i,
        "queued_ts": 50.0 + i,
        "first_token_ts": 52.0 + i,
        "last_token_ts": 53.0 + i,
        **more,
    }


def test_a_line_a_request_gives_latencies_on_the_clock_of_its_tokens(tmp_path: Path) -> None:
    lines = "".join(json.dumps(request(i)) + "\n" for i in range(4))
    bench = read_bench(saved(tmp_path, lines, "requests.jsonl"))
    assert bench.figures["ttft_s_mean"] == pytest.approx(2.0)
    assert bench.figures["tpot_s_p99"] == pytest.approx(0.1)
    assert bench.figures["duration_s"] == pytest.approx(6.0)
    assert bench.figures["total_tokens_per_s"] == pytest.approx(444 / 6)
    assert len(bench.sent) == 4 and not bench.problems


def test_a_cut_line_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    lines = "".join(json.dumps(request(i)) + "\n" for i in range(4))
    bench = read_bench(saved(tmp_path, lines[:-20], "requests.jsonl"))
    assert len(bench.sent) == 3
    assert "line 4: cut or no request; left out, 3 are used" in bench.problems[0]


def test_a_table_of_requests_may_be_csv_with_milliseconds(tmp_path: Path) -> None:
    text = "prompt_tokens,output_tokens,start_time,ttft_ms,latency_ms\n100,11,0,500,1500\n100,11,1,500,1500\n"
    bench = read_bench(saved(tmp_path, text, "requests.csv"))
    assert bench.figures["e2e_s_mean"] == pytest.approx(1.5)
    assert bench.figures["tpot_s_mean"] == pytest.approx(0.1)
    assert bench.figures["duration_s"] == pytest.approx(2.5)


def test_bytes_that_are_not_utf8_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_bytes(b"caf\xe9\n" + TABLE.encode())
    bench = read_bench(path)
    assert bench.figures["duration_s"] == 62.23
    assert "out.txt:1: a line holds bytes that are not UTF-8" in bench.problems[0]
