"""The calculator page in a real browser answers as ``estimate`` does, and says what it refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.cli.main import run as command
from hisparse_sim.errors import HiSparseError
from hisparse_sim.estimate import answer as answers
from hisparse_sim.estimate.as_json import answer_json
from hisparse_sim.estimate.question import deployment
from hisparse_sim.report.page.calculator import DTYPES, TP, constants
from hisparse_sim.scenario.catalogue import list_models, list_nodes
from hisparse_sim.scenario.check import check_engine

Show = Callable[..., Any]
Question = dict[str, Any]
_NOT_OF_THE_ENGINE = ("model", "node", "context", "users", "dtype")
_QUESTIONS = 200


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calculator") / "calculator.html"
    assert command(["report", "--calculator", "-o", str(path)]) == 0
    return path


def question(draw: random.Random) -> Question:
    """Most of what an engine may be asked, odd and refused settings among it."""
    often = draw.choice
    return {
        "model": often([*list_models(), *["glm-5.3"] * 4]),
        "node": often(list_nodes()),
        "tp": often([None, None, *TP[:5]]),
        "dp": often([1, 1, 1, 2, 4, 8]),
        "ep": draw.random() < 0.7,
        "dtype": often([*DTYPES, "fp8", "fp8"]),
        "context": round(2 ** draw.uniform(4, 20)),
        "users": often([None, draw.randint(1, 300)]),
        "mtp": often([0, 0, 0, 1, 3, 20]),
        "hot_rows": often([None, None, None, 2048, 6000, 8192, 40_000]),
        "host_pool_gib": often(["auto", "auto", 0.5, 64, 333.3, 1024]),
        "shared_host_pool": draw.random() < 0.8,
        "indexer_offload_gib": often([0, 0, 0, 100.7, 1500, 4000]),
        "kv_offload_gib": often([0, 0, 0, 512, 5000]),
        "gpu_memory_utilization": often([0.92, 0.92, round(draw.uniform(0.3, 1), 3)]),
        "max_model_len": often(["auto", "auto", "auto", round(2 ** draw.uniform(10, 20))]),
        "max_num_seqs": often([256, 256, 16, 1024]),
        "max_num_batched_tokens": often([8192, 8192, 512, 16384, 32768, 131072]),
    }


def expected(q: Question, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | str:
    """What ``estimate --json`` says of it, seconds left out; or the field that is refused."""
    # Seconds are not on the page, and their pricing is most of the time.
    monkeypatch.setattr(answers, "decode_model", lambda *_, **__: (None, ""))
    engine = {k: v for k, v in q.items() if k not in _NOT_OF_THE_ENGINE and v is not None}
    try:
        asked, _ = deployment(q["model"], q["node"], engine | {"kv_cache_dtype": q["dtype"]})
        check_engine(asked.model, asked.node, asked.engine)
        found = answers.answer(asked.model, asked.node, asked.engine, [q["context"]], users=q["users"])
    except HiSparseError as error:
        return (error.where or "").removeprefix("engine.").removeprefix("--")
    data = answer_json(found, None, [])
    (row,) = data["rows"]
    memory = data["memory"]
    return {
        "modes": {
            mode: {
                "requests": row[mode],
                "per_dp": row["modes"][mode]["requests_per_dp"],
                "limit": row["modes"][mode]["limit"],
                "range": row[f"{mode}_range"],
                **({"longest": data["users"]["longest_context_tokens"][mode]} if q["users"] else {}),
            }
            for mode in answers.MODES
        },
        "min_host_gib_per_dp": row["min_host_gib_per_dp"],
        "users_host_gib_per_dp": row.get("users_host_gib_per_dp"),
        "nodes": data["nodes"],
        "weights_gib": memory["weights_gib"],
        "reserve_gib": memory["reserve_gib"],
        "kv_gib": memory["derived_kv_gib"],
        "host_pool_gib": memory["host_pool_gib_per_dp"],
        "max_model_len": {m: v for m, v in memory["max_model_len"].items() if v},
    }


_IN_THE_BROWSER = """
return arguments[0].map((q) => {
  try {
    const found = estimate(q), modes = {}, lengths = {};
    for (const mode of MODES) {
      const {words, ...numbers} = found.modes[mode];
      modes[mode] = numbers;
      if (found.pools[mode].sizes) lengths[mode] = found.pools[mode].sizes.max_model_len;
    }
    return {modes, min_host_gib_per_dp: found.min_host_gib_per_dp,
      users_host_gib_per_dp: found.users_host_gib_per_dp,
      nodes: found.nodes, weights_gib: found.memory.weights / GIB, reserve_gib: found.memory.reserve / GIB,
      kv_gib: found.memory.kv / GIB, host_pool_gib: found.host_pool === null ? null : found.host_pool / GIB,
      max_model_len: lengths};
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return error.message.split(":")[0];
  }
})"""


def test_the_page_agrees_with_estimate_on_200_random_questions(
    calculator: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(8)
    asked = [question(draw) for _ in range(_QUESTIONS)]
    found = show(calculator).execute_script(_IN_THE_BROWSER, asked)
    wrong = [(q, f, e) for q, f in zip(asked, found, strict=True) if f != (e := expected(q, monkeypatch))]
    assert not wrong, (len(wrong), wrong)
    # The questions are no trivial ones: many are answered, many refused, and each limit occurs.
    answered = [f for f in found if not isinstance(f, str)]
    assert 60 < len(answered) < _QUESTIONS - 20
    limits = {one["limit"] for f in answered for one in f["modes"].values()}
    assert limits == {"weights", "hbm", "host_pool", "max_num_seqs", "unsupported"}


def test_the_page_opens_with_an_answer_and_no_errors(calculator: Path, show: Show) -> None:
    for width in (390, 1200):
        opened = show(calculator, width=width)
        assert opened.get_log("browser") == []
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        shown = opened.execute_script(
            "return [...document.querySelectorAll('#modes b')].map((b) => parseInt(b.firstChild.data))"
        )
        assert shown[2] > shown[0] == shown[1] > 0


def test_a_change_is_answered_kept_in_the_address_and_taken_back(calculator: Path, show: Show) -> None:
    opened = show(calculator)
    text = "return document.getElementById(arguments[0]).textContent"
    change = """
        const field = form.elements[arguments[0]];
        field.value = arguments[1];
        field.dispatchEvent(new Event('input', {bubbles: true}))"""
    before = opened.execute_script(text, "modes")
    opened.execute_script(change, "context", "1M")
    assert opened.execute_script(text, "modes") != before
    assert "--context 1048576" in opened.execute_script(text, "command")
    opened.refresh()
    assert "--context 1048576" in opened.execute_script(text, "command")
    opened.execute_script(change, "tp", "3k")
    opened.execute_script(change, "context", "much")
    assert "context: “much” is not a number of tokens" in opened.execute_script(text, "refused")
    assert not opened.execute_script("return document.getElementById('refused').hidden")
    opened.execute_script("document.querySelector('[type=reset]').click()")
    assert opened.execute_script(text, "modes") == before


def test_the_command_that_the_page_gives_has_the_same_answer(
    calculator: Path, show: Show, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"tp": 4, "dp": 2, "ep": False, "dtype": "bf16", "context": 50_000, "users": 3, "hot_rows": 8192}
    odd |= {"host_pool_gib": 200, "mtp": 1, "shared_host_pool": False, "indexer_offload_gib": 8}
    odd |= {"gpu_memory_utilization": 0.95, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    odd |= {"max_model_len": 60_000, "kv_offload_gib": 100, "node": "8xb300"}
    given, found = show(calculator).execute_script(
        "const q = {...asked(), ...arguments[0]}, modes = estimate(q).modes;"
        "return [command(q), Object.fromEntries(MODES.map((mode) => [mode, modes[mode].requests]))]",
        odd,
    )
    assert command([*given.split()[1:], "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert {mode: answered["rows"][0][mode] for mode in found} == found
    assert found["hisparse"] > 0
    engine = answered["engine"]
    assert all(engine[name] == value for name, value in odd.items() if name in engine)


def test_the_layouts_on_the_page_are_those_of_all_shipped_models_and_nodes() -> None:
    found = constants()
    assert set(found["models"]) == set(list_models())
    assert set(found["nodes"]) == set(list_nodes())
    each = len(list_models()) * len(DTYPES) * 2 * len(TP)
    assert all(len(node["layouts"]) == each for node in found["nodes"].values())


def test_a_calculator_takes_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(tmp_path), "--calculator"]) == 2
    assert "needs no run" in capsys.readouterr().err
