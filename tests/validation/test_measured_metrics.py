"""Scrapes of /metrics, ranges of Prometheus and tables of gauges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.metrics import read_metrics
from hisparse_sim.validation.measured.prometheus import quantile

LABELS = '{engine="0",model_name="m"}'


def scrape(tmp_path: Path, *lines: str, name: str = "m.prom") -> Path:
    path = tmp_path / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_waiting_by_reason_is_not_counted_again(tmp_path: Path) -> None:
    path = scrape(
        tmp_path,
        f"vllm:num_requests_waiting{LABELS} 72.0",
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 72.0',
    )
    assert read_metrics([path]).figures["waiting_mean"] == 72


def test_external_hits_are_not_taken_for_hits(tmp_path: Path) -> None:
    path = scrape(
        tmp_path,
        f"vllm:prefix_cache_queries_total{LABELS} 100",
        f"vllm:prefix_cache_hits_total{LABELS} 40",
        f"vllm:prefix_cache_hits_created{LABELS} 1.7e9",
        f"vllm:external_prefix_cache_queries_total{LABELS} 60",
        f"vllm:external_prefix_cache_hits_total{LABELS} 15",
    )
    figures = read_metrics([path]).figures
    assert (figures["prefix_hit_rate"], figures["external_hit_rate"]) == (0.4, 0.25)


@pytest.mark.parametrize("total", ["", "_total"])
@pytest.mark.parametrize("usage", ["host_blocks_usage", "host_cache_usage_perc"])
def test_hisparse_metrics_have_old_and_new_names(tmp_path: Path, total: str, usage: str) -> None:
    path = scrape(
        tmp_path,
        f"vllm:hisparse_cache_hits{total}{LABELS} 75",
        f"vllm:hisparse_cache_misses{total}{LABELS} 25",
        f"vllm:hisparse_host_to_device_bytes{total}{LABELS} 1e9",
        f"vllm:hisparse_{usage}{LABELS} 0.5",
        f"vllm:hisparse_host_blocks_total{LABELS} 1000",
    )
    found = read_metrics([path])
    assert (found.figures["hot_hit_rate"], found.figures["host_usage_max"]) == (0.75, 0.5)
    assert found.settings["host_blocks"] == 1000


@pytest.mark.parametrize("total", ["", "_total"])
def test_two_scrapes_give_what_was_between_them(tmp_path: Path, total: str) -> None:
    def at(hits: int, tokens: int, sum_s: float, name: str) -> Path:
        return scrape(
            tmp_path,
            f"vllm:hisparse_cache_hits{total} {hits}",
            f"vllm:hisparse_cache_misses{total} 10",
            "vllm:hisparse_host_blocks_total 1000",
            f"vllm:generation_tokens_total {tokens}",
            f"vllm:time_to_first_token_seconds_sum {sum_s}",
            f"vllm:time_to_first_token_seconds_count {tokens / 10}",
            name=name,
        )

    before, after = at(90, 100, 10.0, "a"), at(190, 300, 50.0, "b")
    found = read_metrics([before, after])
    assert found.figures["output_tokens"] == 200
    assert found.figures["ttft_s_mean"] == pytest.approx(2.0)
    assert found.figures["hot_hit_rate"] == 1.0
    assert found.settings["host_blocks"] == 1000  # a gauge for all its name
    turned = read_metrics([after, before])
    assert "wrong order" in turned.problems[0] and turned.figures["output_tokens"] == 100


def test_percentiles_lie_within_buckets() -> None:
    assert quantile({1.0: 5, 2.0: 10, float("inf"): 10}, 0.75) == pytest.approx(1.5)
    assert quantile({1.0: 5, float("inf"): 10}, 0.99) == 1.0
    assert quantile({}, 0.5) is None


def test_the_oldest_names_are_known(tmp_path: Path) -> None:
    path = scrape(
        tmp_path,
        f"vllm:avg_generation_throughput_toks_per_s{LABELS} 842.8",
        f"vllm:gpu_cache_usage_perc{LABELS} 0.388",
        f"vllm:gpu_prefix_cache_hit_rate{LABELS} -1.0",
    )
    figures = read_metrics([path]).figures
    assert figures["gpu_kv_usage_mean"] == 0.388 and figures["output_tokens_per_s"] == 842.8
    assert "prefix_hit_rate" not in figures  # -1: nothing was asked


def test_an_idle_engine_tells_its_settings_and_no_figures(tmp_path: Path) -> None:
    path = scrape(
        tmp_path,
        f"vllm:num_requests_running{LABELS} 0.0",
        f"vllm:kv_cache_usage_perc{LABELS} 0.0",
        f"vllm:generation_tokens_total{LABELS} 0.0",
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="2375"} 1.0',
    )
    found = read_metrics([path])
    assert not found.figures and found.settings["num_gpu_blocks"] == 2375
    assert any("idle" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# TYPE vllm:num_requests_running gauge\n", "1 metrics are described and none has a sample"),
        ("hello world again and again\n", "holds no samples of Prometheus metrics"),
        ("go_goroutines 8\n", "holds no metric of vLLM's that is known"),
        ('{"status": "success", "data": {"result": []}}', "the query found no series"),
        ('{"status": "error", "error": "parse error"}', "is an error of Prometheus: parse error"),
        ('{"status": "succ', "is no whole JSON"),
        ('{"panels": []}', "is no answer of Prometheus"),
        ("t,running,waiting\n", "is a table without rows"),
    ],
)
def test_metrics_without_samples_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "m"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_metrics([path])
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_a_number_that_may_be_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text(f"vllm:num_requests_running{LABELS} 24\nvllm:num_requests_waiting{LABELS} 7")
    found = read_metrics([path])
    assert found.figures["running_mean"] == 24 and "waiting_mean" not in found.figures
    assert "m:2: the last line has no end" in found.problems[0]


def series(name: str, *values: float, **labels: str) -> dict[str, Any]:
    points = [[1000 + 15 * i, str(v)] for i, v in enumerate(values)]
    return {"metric": {"__name__": name, **labels} if name else labels, "values": points}


def test_a_range_gives_means_of_gauges_and_growth_of_counters(tmp_path: Path) -> None:
    answer = {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                series("vllm:num_requests_running", 0, 10, 20, 0, engine="0"),
                series("vllm:num_requests_running", 0, 0, 10, 0, engine="1"),
                series("vllm:generation_tokens_total", 0, 300, 600, 600),
                series("vllm:num_preemptions_total", 5, 7, 1, 1),
            ],
        },
    }
    path = tmp_path / "range.json"
    path.write_text(json.dumps(answer))
    figures = read_metrics([path]).figures
    assert figures["running_mean"] == 20  # of 10 and 30: two engines, idle times left out
    assert (figures["output_tokens"], figures["output_tokens_per_s"]) == (600, 20)
    assert figures["preemptions"] == 3  # it started anew from 0
    path.write_text(json.dumps({"q": answer, "rate": {"data": {"result": [series("", 1, 2)]}}}))
    found = read_metrics([path])
    assert found.figures["running_mean"] == 20 and "1 series have no name" in found.problems[0]


def test_usage_of_0_while_requests_run_is_no_figure(tmp_path: Path) -> None:
    path = scrape(tmp_path, "t,running,waiting,gen_throughput,kv_cache_pct", "1,4,0,3,0", "2,6,2,5,0")
    found = read_metrics([path])
    assert found.figures["running_mean"] == 5 and "gpu_kv_usage_mean" not in found.figures
    assert "does not report it" in found.notes[0]


def test_more_than_two_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is given 3 times"):
        read_metrics([tmp_path] * 3)
