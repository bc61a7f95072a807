"""The parts of a step add up to it, and the indexer is told from the rest of the attention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.cli.main import run
from hisparse_sim.cost.profile import load_profile
from hisparse_sim.cost.step import StepCostModel
from hisparse_sim.estimate.anatomy import WORDS, decode_anatomy, prefill_anatomy, table
from hisparse_sim.scenario.catalogue import load_model, load_node
from hisparse_sim.scenario.engine import EngineSpec

COSTS = {
    f"{model} {mode} {mtp}": StepCostModel(
        load_model(model),
        load_node("8xh200"),
        EngineSpec(mode=mode, mtp=mtp, kv_cache_dtype="fp8"),
        load_profile("h200-published"),
    )
    for model, mode, mtp in (
        ("glm-5.3", "hisparse", 0),
        ("glm-5.3", "hisparse", 3),
        ("glm-5.3", "resident", 0),
        ("deepseek-v3.2", "hisparse", 0),
        ("kimi-k2", "resident", 0),
        ("llama-3.1-8b", "resident", 0),
    )
}


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(list(COSTS)),
    st.integers(1, 200),
    st.integers(1, 1_000_000),
    st.floats(0, 1),
    st.integers(1, 40_000),
)
def test_parts_add_up_to_the_step_that_is_simulated(
    name: str, requests: int, tokens: int, share: float, chunk: int
) -> None:
    cost = COSTS[name]
    decode = decode_anatomy(cost, requests, tokens, share)
    assert decode.seconds == cost.step(cost.decode_work(requests, tokens, share)).total_s
    for step in (decode, prefill_anatomy(cost, chunk, tokens, share)):
        assert sum(part.seconds for part in step.parts) == pytest.approx(step.seconds, rel=1e-12)
        assert all(part.seconds >= 0 and part.hidden_s >= 0 for part in step.parts)
        assert [part.name for part in step.parts] == [n for n in WORDS if n in {p.name for p in step.parts}]


def test_the_indexer_is_what_grows_with_the_context() -> None:
    parts = [
        {p.name: p.seconds for p in decode_anatomy(COSTS["glm-5.3 resident 0"], 4, tokens, 1.0).parts}
        for tokens in (50_000, 120_000)
    ]
    assert parts[1]["indexer"] > 1.2 * parts[0]["indexer"]
    assert parts[1]["attention"] == pytest.approx(parts[0]["attention"])


def test_gathers_of_followers_are_partly_hidden() -> None:
    step = decode_anatomy(COSTS["glm-5.3 hisparse 0"], 8, 80_000, 0.0)
    gather = next(part for part in step.parts if part.name == "gather")
    assert gather.hidden_s > 0
    assert "hidden" in table([step])


def test_the_command_draws_and_gives_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "anatomy"
    assert run(["explain", "agentic-13turn-8xh200", "--batch", "8", "--out", str(out), "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert "8 requests of" in steps[0]["what"]
    assert steps[0]["seconds"] == pytest.approx(sum(part["seconds"] for part in steps[0]["parts"]))
    assert {p.name for p in out.iterdir()} == {"anatomy.png", "anatomy.svg"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch", "0"], "0 requests; at least 1"),
        (["--context", "9M"], "exceed max_model_len"),
        (["--resident-share", "1.5"], "no share from 0 to 1"),
        (["--chunk", "many"], "not a number of tokens"),
        (["--mode", "magic"], "magic"),
    ],
)
def test_an_operating_point_that_cannot_be_is_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "agentic-13turn-8xh200", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_more_requests_than_fit_are_explained_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "agentic-13turn-8xh200", "--mode", "resident", "--batch", "500"]) == 0
    assert "do not fit" in capsys.readouterr().err
