"""What estimate and explain say of SGLang's HiSparse."""

from __future__ import annotations

import json

import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.estimate.concurrency import Count, mode_pools
from hisparse_sim.estimate.operating_point import explained
from hisparse_sim.planning.point import Point
from hisparse_sim.planning.screen import Screen
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec
from hisparse_sim.scenario.loader import load_scenario

GLM51, H200 = load_model("glm-5.1"), load_node("8xh200")
REPORTED = EngineSpec(
    kind="sglang",
    mode="hisparse",
    device_buffer_size=4096,
    host_to_device_ratio=5,
    max_total_tokens=49_152,
    disaggregation_mode="decode",
)
"""sglang issue 23704, 2026-05-13: GLM-5.1-FP8, TP8, decode instance on 8 H200, 49,152 x 5 = 245,760 host
tokens, prompts of 46,000 to 63,000; seven were in flight when host allocation failed, after 38 that
succeeded. The report also names a ratio of 11."""
ASK = ["estimate", "--model", "glm-5.1", "--node", "8xh200"]
ASK += ["--set", "engine.kind=sglang", "--set", "engine.mode=hisparse"]


def counted(engine: EngineSpec, tokens: int) -> Count:
    return mode_pools(GLM51, H200, engine, engine.mode).count(tokens)


def test_three_to_five_prompts_of_issue_23704_fit_its_host_pool_and_seven_never() -> None:
    longest, shortest = (counted(REPORTED, tokens) for tokens in (63_000, 46_000))
    assert (longest.requests, longest.limit) == (3, "host_pool")
    assert (shortest.requests, shortest.limit) == (5, "host_pool")
    # Four of its clients alone fill it; the ratio of 11 would have held the seven.
    assert 4 * 61_440 == 245_760
    assert counted(REPORTED.model_copy(update={"host_to_device_ratio": 11}), 63_000).requests >= 7


def test_prefill_in_the_same_engine_costs_the_device_pool_a_whole_prompt() -> None:
    alone = EngineSpec(kind="sglang", mode="hisparse", host_to_device_ratio=10)
    fed = alone.model_copy(update={"disaggregation_mode": "decode"})
    pages, buffer = 512, 65
    difference = counted(fed, 32_768).gpu - counted(alone, 32_768).gpu
    assert difference in (pages // buffer, (pages - buffer) // buffer + 1)


def test_estimate_tells_the_pools_and_a_row_a_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--context", "8k,128k", "--set", "engine.host_to_device_ratio=10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    memory = found["memory"]
    assert memory["host_pool_tokens"] == 10 * memory["max_total_num_tokens"]
    assert memory["host_pool_gib_per_node"] == pytest.approx(8 * memory["host_pool_gib_per_rank"])
    short, long = found["rows"]
    assert (short["limit"], long["limit"]) == ("device_pool", "host_pool")
    assert short["requests"] > long["requests"] > long["resident"]
    assert short["tpot_s"] > 0
    assert run([*ASK, "--context", "8k"]) == 0
    assert "max_total_num_tokens" in capsys.readouterr().out


def test_a_flag_of_vllm_is_refused_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--hot-rows", "4096"]) == 2
    assert capsys.readouterr().err.startswith("error: --hot-rows: a setting of vllm")


def test_explain_reads_all_rows_through_the_buffer_and_no_history_back_for_a_prefill() -> None:
    decode, prefill = explained(load_scenario("sglang-8xh200")).steps
    assert decode.misses_rows > 0
    assert {"resolve", "gather"} <= {part.name for part in decode.parts}
    assert "staging" not in {part.name for part in prefill.parts}


def test_the_closed_form_of_a_load_says_that_it_knows_no_instance_that_only_decodes() -> None:
    screen = Screen(())
    assert screen.size(Point(load_scenario("sglang-8xh200"), {}, "")) is not None
    decoding = load_scenario("sglang-8xh200", overrides=["engine.disaggregation_mode=decode"])
    assert screen.size(Point(decoding, {}, "")) is None
    assert "engine.disaggregation_mode" in next(iter(screen.refused))
