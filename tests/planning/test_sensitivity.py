"""Each input is moved alone, and what matters most comes first."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from hisparse_sim.cli.main import run
from hisparse_sim.errors import InputError
from hisparse_sim.planning.sensitivity import Sensitivity, sensitivity
from hisparse_sim.planning.slo import parse_goals
from hisparse_sim.scenario.loader import load_scenario


@lru_cache(maxsize=8)
def moved(mode: str, of: str, clients: int = 24) -> Sensitivity:
    change = [f"engine.mode={mode}", f"workload.concurrency={clients}"]
    return sensitivity(load_scenario("agentic-13turn-8xh200", overrides=change), of)


def test_the_widest_swing_is_first() -> None:
    widths = [swing.width for swing in moved("hisparse", "tpot_mean").swings]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 0


def test_slower_kernels_and_more_misses_make_tokens_slower_and_a_faster_link_does_not() -> None:
    found = moved("hisparse", "tpot_mean")
    by_name = {swing.what: swing for swing in found.swings}
    for name in ("attention kernels", "step overhead: launches, host", "share of selected rows that miss"):
        assert by_name[name].low < by_name[name].high
    link = by_name["host link (pcie5) rates"]
    assert link.low > found.base > link.high


def test_misses_do_not_matter_where_nothing_is_looked_up() -> None:
    names = {swing.what for swing in moved("resident", "tpot_mean").swings}
    assert "share of selected rows that miss" not in names
    assert "resolving the selection" not in names


def test_moving_an_input_leaves_the_next_answer_alone() -> None:
    assert sensitivity(
        load_scenario("agentic-13turn-8xh200", overrides=["engine.mode=hisparse", "workload.concurrency=24"]),
        "tpot_mean",
    ) == moved("hisparse", "tpot_mean")


def test_the_largest_load_needs_goals() -> None:
    scenario = load_scenario("agentic-13turn-8xh200")
    with pytest.raises(InputError, match="largest_load needs goals"):
        sensitivity(scenario, "largest_load")
    found = sensitivity(scenario, "largest_load", parse_goals(["tpot_mean<=80ms"]))
    assert found.base == int(found.base) > 0


def test_the_command_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tornado"
    assert run(["sensitivity", "stream-1m-8xh200", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("output_tokens_per_s: ")
    assert {p.name for p in out.iterdir()} == {"tornado.png", "tornado.svg"}
    assert run(["sensitivity", "stream-1m-8xh200", "--of", "speed"]) == 2
    assert "--of: 'speed' is not known" in capsys.readouterr().err
