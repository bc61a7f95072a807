"""Differences between profiles: every pair of shipped ones, and what one number changes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from hisparse_sim.calibration.difference import difference
from hisparse_sim.cost.profile import Profile, list_profiles, load_profile
from hisparse_sim.scenario.loader import load_scenario

SHIPPED = load_profile("h200-published")


def _changed(term_id: str, **changes: Any) -> Profile:
    terms = tuple(t.model_copy(update=changes) if t.id == term_id else t for t in SHIPPED.terms)
    made = SHIPPED.model_dump(by_alias=True) | {"terms": [t.model_dump() for t in terms]}
    return Profile.model_validate(made)


def test_any_two_shipped_profiles_can_be_compared() -> None:
    for one, other in combinations(list_profiles(), 2):
        there = difference(load_profile(one), load_profile(other)).as_json()
        back = difference(load_profile(other), load_profile(one)).as_json()
        other_way = {"only in the first": "only in the second", "only in the second": "only in the first"}
        assert len(there["terms"]) == len(back["terms"]) > 0
        what = {c["term"]: c["what"] for c in back["terms"]}
        assert all(what[c["term"]] == other_way.get(c["what"], what[c["term"]]) for c in there["terms"])


def test_the_most_changed_parameter_is_told_with_its_ratio_also_from_and_to_zero() -> None:
    line = SHIPPED.term("allreduce.gpus8")
    y = line.series("y")
    raised = (*y[:2], 3 * y[-1], 3 * y[-1], 3 * y[-1], 3 * y[-1])
    (change,) = difference(SHIPPED, _changed(line.id, params={**line.params, "y": raised})).terms
    assert (change.term, change.what, change.largest) == (line.id, "changed", "y")
    assert change.ratio == pytest.approx(3 * y[-1] / y[2])
    zero = _changed(line.id, params={**line.params, "tail_slope": 0.0})
    for before, after in ((SHIPPED, zero), (zero, SHIPPED)):
        (change,) = difference(before, after).terms
        assert (change.largest, change.ratio) == ("tail_slope", None)


def test_what_changes_no_time_is_told_too() -> None:
    wider = _changed("allreduce.gpus8", domain={"bytes": (1.0, 1e9)}, grade="derived")
    (change,) = difference(SHIPPED, wider).terms
    assert change.what == "same times, other domain, grade"
    assert not difference(SHIPPED, SHIPPED).terms


def test_a_scenarios_time_per_token_is_set_side_by_side_and_another_gpu_is_named() -> None:
    scenario = load_scenario("agentic-13turn-8xh200")
    found = difference(SHIPPED, load_profile("b200-published"), scenario)
    assert found.tpot and all(0 < c.after_s < c.before_s for c in found.tpot)
    (warning,) = found.warnings
    assert "NVIDIA B200" in warning and "H200 SXM5" in warning
