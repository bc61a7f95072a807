"""Logs, tables, per-request files and scrapes that people published: each is read, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.errors import InputError
from hisparse_sim.validation.measured.bench import read_results
from hisparse_sim.validation.measured.engine_log import read_engine_log
from hisparse_sim.validation.measured.metrics import read_metrics

CASES = Path(__file__).resolve().parents[2] / ".." / "shared" / "cases"
READERS: dict[str, Callable[[Path], Any]] = {
    "bench": read_results,
    "metrics": lambda path: read_metrics([path]),
    "log": read_engine_log,
}
READ = {
    "11_gpt-oss-120b_4xA100_ray.log": "log",
    "13_qwen2-7b_2xA100-40GB_two-nodes_util0.50.log": "log",
    "13_qwen2-7b_2xA100_same-node_util0.25.log": "log",
    "13_qwen2-7b_2xA100_same-node_util0.50.log": "log",
    "21_laguna-s-2.1-int4_gb10_262k.log": "log",
    "21_laguna-s-2.1-int4_gb10_64k.log": "log",
    "21_laguna-s-2.1-nvfp4_gb10.log": "log",
    "23_qwen3.6-35b-a3b-nvfp4_mtp_gb10.log": "log",
    "25_qwen3-30b-a3b_1xH100_startup+stats.log": "log",
    "66_parser_fragments_real.log": "log",
    "40_kimi-k2-thinking_bench_and_log.txt": "bench log",
    "42_glm-5.1-fp8_8xh200_bench.txt": "bench",
    "44_rtx4090_llama-3.1-8b_requests.jsonl": "bench",
    "46_rtxpro6000_qwen3-32b_requests.jsonl": "bench",
    "48_qwen2-7b_a100_bench_serving_tables.txt": "bench log",
    "54_gpt-oss-120b_4xa100_bench_serving_tables.txt": "bench log",
    "44_rtx4090_llama-3.1-8b_timeseries.csv": "metrics",
    "46_rtxpro6000_qwen3-32b_timeseries.csv": "metrics",
    "60_vllm-v0_rtx3090_mistral-7b_metrics.prom": "metrics",
    "62_vllm-v0.6_llama-3.1-8b_metrics.prom": "metrics",
    "64_vllm_num_requests_waiting_by_reason.prom": "metrics",
}
"""Attachments of classes a, b and c, and what they are; others (settings, notes about a case) are refused."""


def attachments() -> list[Path]:
    """All files of the cases of classes a, b and c; one of the descriptions is no valid JSON."""
    described = [
        path for path in sorted(CASES.glob("*.json")) if re.search(r'"cls": "[abc]"', path.read_text())
    ]
    return [path for case in described for path in sorted(CASES.glob(f"{case.name.split('_')[0]}_*"))]


@pytest.mark.skipif(not CASES.is_dir(), reason="the published cases are not here")
def test_the_cases_are_those_that_are_expected() -> None:
    assert READ.keys() <= {path.name for path in attachments()}


@pytest.mark.parametrize("path", attachments() or [None], ids=lambda path: path.name if path else "none")
@pytest.mark.parametrize("kind", READERS)
def test_each_is_read_or_refused_with_the_reason(path: Path | None, kind: str) -> None:
    if path is None:
        pytest.skip("the published cases are not here")
    try:
        READERS[kind](path)
    except InputError as error:
        assert kind not in READ.get(path.name, "").split(), error
        assert str(path) in str(error) and len(error.message) > 10
    else:
        assert kind in READ.get(path.name, "").split(), f"{path.name} is taken for a {kind}"


def case(name: str) -> Path:
    if not (CASES / name).is_file():
        pytest.skip("the published cases are not here")
    return CASES / name


def test_memory_and_gauges_of_a_real_log_are_those_that_it_prints() -> None:
    log = read_engine_log(case("25_qwen3-30b-a3b_1xH100_startup+stats.log"))
    assert log.startup is not None and len(log.samples) == 261
    assert (log.startup.available_kv_gib, log.startup.num_gpu_blocks) == (8.68, 5924)
    assert log.startup.kv_tokens == 94_784
    assert log.figures["running_max"] == 37
    assert not log.problems  # its last line has no end, and is whole


def test_latencies_of_a_real_replay_are_those_that_its_authors_state() -> None:
    (bench,), _ = read_results(case("44_rtx4090_llama-3.1-8b_requests.jsonl"))
    stated = {"ttft_s_mean": 65.4566, "ttft_s_p99": 137.3563, "tpot_s_mean": 0.0324, "e2e_s_p99": 153.6275}
    for name, value in stated.items():
        assert bench.figures[name] == pytest.approx(value, abs=6e-5)


def test_fifty_five_tables_of_one_file_are_told_apart() -> None:
    benches, problems = read_results(case("48_qwen2-7b_a100_bench_serving_tables.txt"))
    assert len(benches) == 55 and not problems
    assert benches[0].figures["duration_s"] == 46.96
