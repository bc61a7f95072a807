"""``plan`` from the command line: a recommendation, or one line that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse_sim.cli.main import run

ASKED = """
model: glm-5.3
node: 8xh200
engine: {mode: hisparse, kv_cache_dtype: fp8, kv_offload_gib: 256}
workload:
  {kind: conversations, concurrency: 4, turns: 2, first_prompt_tokens: 9000, new_tokens_per_turn: 100,
   output_tokens: 20}
plan:
  slo: [ttft_p95<=20s]
  vary: {engine.host_pool_gib: "64..128:2"}
"""


@pytest.fixture
def asked(tmp_path: Path) -> str:
    path = tmp_path / "asked.yaml"
    path.write_text(ASKED)
    return str(path)


def test_the_recommendation_names_limits_prices_and_a_command(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", asked, "--bisect", "1"]) == 0
    said = capsys.readouterr().out
    assert "no prices given (plan.prices): cost is counted in GPUs and GPU-hours" in said
    assert "recommended: host_pool_gib 64, 1 x 8xh200" in said
    assert "\n  vllm serve zai-org/GLM-5.3-FP8 --tensor-parallel-size 8 " in said
    assert "of 100 draws of the profile's uncertainties" in said


def test_json_holds_the_same(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", asked, "--json", "--bisect", "0", "--slo", "ttft_p99<=30s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recommended"]["judged_by"] == "simulation"
    assert found["recommended"]["metrics"]["ttft_p99"] < 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slo", "ttft_p95<=30GB"], "--slo ttft_p95<=30GB: 'GB' is no unit of ttft_p95"),
        (["--slo", "tpot_p42<=1s"], "--slo tpot_p42<=1s: 'tpot_p42' is not known"),
        (["--slo", "ttft_p95<=1us"], "plan: no combination is left: "),
        (["--objective", "speed"], "--objective: 'speed' is not known; one of cost, nodes, goodput"),
        (["--vary", "nodes=0,1"], "--vary nodes: 0 is no count of machines"),
        (["--vary", "engine.hostpool=1"], "--vary engine.hostpool=1: "),
        (["--simulate", "-1"], "--simulate: -1 is no number of simulations"),
        (["--set", "plan.prices={8xb200: 3}"], "plan.prices: has no 8xh200"),
        (["--set", "workload={kind: trace, path: x.jsonl}"], "workload"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    asked: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", asked, *words]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"error: {said}")
    assert found.err.count("\n") == 1


def test_where_no_run_holds_the_nearest_are_shown_with_exit_code_1(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", asked, "--slo", "itl_p50<=1s", "--slo", "ttft_p99<=1.5s"]) == 1
    said = capsys.readouterr().out
    assert "no combination that was simulated holds" in said
    assert "breaks ttft_p99<=1.5s" in said


def test_a_command_is_planned_around(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    served = "vllm serve zai-org/GLM-5.3-FP8 -tp 8 -ep --max-model-len auto --kv-cache-dtype fp8"
    assert (
        run(["plan", asked, "--serve", served, "--bisect", "0", "--vary", "engine.host_pool_gib=auto"]) == 0
    )
    assert "--kv-cache-dtype fp8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "0"], "--jobs: 0 is no number of processes"),
        (["--trials", "0"], "--trials: 0 is no number of draws"),
        (["--vary", "engine.mode=hisparse,fast"], "engine.mode"),
    ],
)
def test_wrong_numbers_are_refused(
    asked: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["plan", asked, *words]) == 2
    assert said in capsys.readouterr().err
